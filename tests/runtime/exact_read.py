"""So many bytes of a stream, as tests that speak a protocol by hand want them."""

from __future__ import annotations

import socket


def read_exactly(connection: socket.socket, size: int) -> bytes:
    """Raises `EOFError` where the other side closed before."""
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
