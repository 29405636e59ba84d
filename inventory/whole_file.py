"""A file that is there whole or not at all, whenever its writer is killed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace `path`, or what it links to, by a file with this text; permissions of one that is there are kept.

    Raises `OSError`; then the old file stands.
    """
    path = path.resolve()
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, scratch)
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
