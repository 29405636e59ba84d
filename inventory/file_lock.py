"""A file or folder that one process at a time holds; the kernel lets go of it when that process ends, however."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held_alone(path: Path, when_held: Callable[[], None]) -> Iterator[None]:
    """Hold `path`: a folder that is there, or else a file, made when it is missing.

    Where another process holds it, `when_held` is called once: it may raise, or return to wait for the other to end.
    """
    flags = os.O_RDONLY if path.is_dir() else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_held()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
