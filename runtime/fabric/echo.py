"""Whether datagrams reach a duck and come back: the echo that it gives anybody, session or not."""

from __future__ import annotations

import secrets
import socket

from duckfleet.runtime.wire import DataHeader, DataKind

_TRIES = 3


class EchoFailed(Exception):
    """Nothing came back."""


def echo(host_address: str, address: str, data_port: int, timeout_s: float = 0.3) -> None:
    """Send an echo from `host_address` and wait for its answer, at most three times. Raises `EchoFailed`."""
    step = secrets.randbits(32)
    datagram = DataHeader(kind=DataKind.ECHO, step=step).pack()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
            udp.bind((host_address, 0))
            udp.connect((address, data_port))
            udp.settimeout(timeout_s)
            for _ in range(_TRIES):
                udp.send(datagram)
                try:
                    header = DataHeader.unpack(udp.recv(2048)[: DataHeader.num_bytes()])
                except TimeoutError:
                    continue
                if (header.kind, header.step) == (DataKind.ECHO_REPLY, step):
                    return
    except OSError as error:
        raise EchoFailed(f"{address}: {error.strerror or error}") from error
    raise EchoFailed(f"{address}: no echo came back")
