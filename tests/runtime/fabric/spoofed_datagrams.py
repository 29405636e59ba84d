"""UDP with a source of one's choice, and copies of what arrives at an address: raw sockets, so root only."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path

from duckfleet.runtime.wire import DataHeader

MAX_PAYLOAD = 65507
_HEADER = struct.Struct("!BBHHHBBH4s4sHHHH")  # IPv4 (RFC 791), then UDP (RFC 768); the kernel fills in the IP checksum
_HEADER_BYTES = _HEADER.size
_SEGMENT_LENGTH = DataHeader.layout()[[field.name for field in DataHeader.layout()].index("fragment_bytes")]


class Spoofer:
    """Sends to one address and port as if from any other."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to, self._port = socket.inet_aton(to[0]), to[1]
        self._address = (to[0], 0)
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)

    def close(self) -> None:
        self._socket.close()

    def send(self, payload: bytes, source: tuple[str, int]) -> bool:
        """False when the kernel refused it; it was not sent then."""
        size = _HEADER_BYTES + len(payload)
        address = socket.inet_aton(source[0])
        header = _HEADER.pack(
            0x45, 0, size, 0, 0, 64, socket.IPPROTO_UDP, 0, address, self._to, source[1], self._port, size - 20, 0
        )
        try:
            self._socket.sendto(header + payload, self._address)
        except OSError:
            return False
        return True


class Sniffer:
    """Copies of the datagrams that arrive at `to` while it is open. A context manager."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._port = to[1]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind((to[0], 0))
        self._socket.setblocking(False)

    def __enter__(self) -> Sniffer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def drain(self) -> list[tuple[bytes, tuple[str, int]]]:
        """Data plane datagrams and their sources; what travelled as one through the kernel is taken apart."""
        found: list[tuple[bytes, tuple[str, int]]] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                packet = self._socket.recv(65536)
                ip_bytes = (packet[0] & 15) * 4
                source_port, port = struct.unpack_from("!HH", packet, ip_bytes)
                if port != self._port:
                    continue
                source = (socket.inet_ntoa(packet[12:16]), source_port)
                rest = packet[ip_bytes + 8 :]
                while len(rest) >= DataHeader.num_bytes():
                    (length,) = struct.unpack_from("<I", rest, _SEGMENT_LENGTH.offset)
                    end = DataHeader.num_bytes() + length
                    found.append((rest[:end], source))
                    rest = rest[end:]
        return found


def kernel_drops(address: str, port: int) -> int:
    """Datagrams that the kernel threw away because the socket bound there was full."""
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    wanted = f"{number:08X}:{port:04X}"
    with Path("/proc/net/udp").open() as table:
        return sum(int(line.split()[-1]) for line in table if line.split()[1] == wanted)
