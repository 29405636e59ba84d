"""Whether jumbo frames reach every duck of a domain and come back: found by echoes that no hop may cut up."""

from __future__ import annotations

import secrets
import selectors
import socket
import time
from contextlib import ExitStack
from dataclasses import replace

from duckfleet.runtime.wire import DataHeader, DataKind, WireFormatError

from .layout import DomainLayout, fragment_bytes

JUMBO_MTU = 9000
_LONGEST_FRAME_MTU = 9216  # an interface with more is no Ethernet: on loopback there is nothing to win
_IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE, _IP_MTU = 10, 3, 14  # linux/in.h: never fragment, ignore what is said of the path
_TRIES = 3
_MAX_ECHO_BYTES = 65536


def with_jumbo_frames(layout: DomainLayout, timeout_s: float = 0.1) -> DomainLayout:
    """The layout with datagrams for jumbo frames where every duck answers one, else as it is.

    Costs nothing where this host's own interface does not take them, at most three times `timeout_s` where it does.
    Echoes carry no tag: somebody on the segment who answers in the ducks' stead can have us send what does not pass,
    which is no more than he could do by dropping it.
    """
    if layout.domain.mtu >= JUMBO_MTU:
        return layout
    wide = replace(layout, domain=replace(layout.domain, mtu=JUMBO_MTU), fragment_bytes=fragment_bytes(JUMBO_MTU))
    with ExitStack() as stack:
        try:
            sockets = {
                stack.enter_context(_towards(layout.domain.host_address, duck.address, layout.data_port))
                for duck in layout.ducks
            }
            if all(_takes_jumbo(each) for each in sockets) and _all_answer(sockets, wide.fragment_bytes, timeout_s):
                return wide
        except OSError:  # not so much at once, nobody there, no way there: what the session says of it names the duck
            pass
    return layout


def _towards(host_address: str, address: str, port: int) -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        udp.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_PROBE)
        udp.bind((host_address, 0))
        udp.connect((address, port))
        udp.setblocking(False)
    except OSError:
        udp.close()
        raise
    return udp


def _takes_jumbo(udp: socket.socket) -> bool:
    return JUMBO_MTU <= udp.getsockopt(socket.IPPROTO_IP, _IP_MTU) <= _LONGEST_FRAME_MTU


def _all_answer(sockets: set[socket.socket], num_bytes: int, timeout_s: float) -> bool:
    step = secrets.randbits(32)
    header = DataHeader(kind=DataKind.ECHO, step=step, message_bytes=num_bytes, fragment_bytes=num_bytes)
    datagram = header.pack() + bytes(num_bytes)
    silent = set(sockets)
    with selectors.DefaultSelector() as selector:
        for udp in sockets:
            selector.register(udp, selectors.EVENT_READ)
        for _ in range(_TRIES):
            for udp in silent:
                udp.send(datagram)
            deadline = time.monotonic() + timeout_s
            while silent and (left_s := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left_s):
                    answered = key.fileobj
                    assert isinstance(answered, socket.socket)
                    if _is_answer(answered.recv(_MAX_ECHO_BYTES), step, num_bytes):
                        silent.discard(answered)
            if not silent:
                return True
    return False


def _is_answer(datagram: bytes, step: int, num_bytes: int) -> bool:
    try:
        header, payload = DataHeader.unpack_prefix(datagram)
    except WireFormatError:
        return False
    return header.kind == DataKind.ECHO_REPLY and header.step == step and len(payload) == num_bytes
