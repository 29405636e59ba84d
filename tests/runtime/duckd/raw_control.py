"""Bytes on a control port, as a stranger would send them."""

from __future__ import annotations

import contextlib
import socket

from tests.runtime.duckd.duck_process import CONTROL_PORT


def connect(address: str, timeout_s: float = 20.0) -> socket.socket:
    return socket.create_connection((address, CONTROL_PORT), timeout=timeout_s)


def exchange(address: str, data: bytes, timeout_s: float = 20.0) -> bytes:
    """Send, say that nothing more comes, and read until the duck closes."""
    with connect(address, timeout_s) as sock:
        answer = b""
        with contextlib.suppress(OSError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                answer += piece
        return answer
