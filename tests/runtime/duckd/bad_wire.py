"""A relay between a duck and whoever speaks to it, that flips bits, cuts and stalls."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.runtime.duckd.duck_process import CONTROL_PORT, random_address

Bend = Callable[[int, bytes], bytes | None]
"""(bytes that went before, a piece) -> what goes on; None: the connection is cut."""


def straight(_passed: int, piece: bytes) -> bytes:
    return piece


def flips_at(offset: int) -> Bend:
    def bend(passed: int, piece: bytes) -> bytes:
        if passed <= offset < passed + len(piece):
            at = offset - passed
            return piece[:at] + bytes([piece[at] ^ 0x10]) + piece[at + 1 :]
        return piece

    return bend


def cuts_at(offset: int) -> Bend:
    return lambda passed, piece: None if passed + len(piece) > offset else piece


@dataclass
class BadWire:
    """Passes TCP connections on to a duck; what the caller says goes through `bends`, what the duck says through
    `back`."""

    duck: str
    bends: list[Bend]  # one a connection, the last for all further ones
    back: Bend = straight
    address: str = field(default_factory=random_address)
    port: int = 0  # any that is free

    def __enter__(self) -> BadWire:
        self._listener = socket.create_server((self.address, self.port))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            bend = self.bends.pop(0) if len(self.bends) > 1 else self.bends[0]
            duck = socket.create_connection((self.duck, CONTROL_PORT))
            for source, target, bent in ((caller, duck, bend), (duck, caller, self.back)):
                thread = threading.Thread(target=self._pass_on, args=(source, target, bent))
                self._threads.append(thread)
                thread.start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, bend: Bend) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                bent = bend(passed, piece)
                if bent is None:
                    break
                passed += len(piece)
                target.sendall(bent)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
