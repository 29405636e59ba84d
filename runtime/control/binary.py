"""Where the duckd that belongs to this installation lies."""

from __future__ import annotations

import contextlib
import os
from importlib import metadata
from pathlib import Path

from duckfleet.inventory.errors import OperatorError

_IN_PACKAGE = Path("duckfleet/runtime/duckd/duckd")


def duckd_path() -> Path:
    """The installed, executable duckd. `$DUCKFLEET_DUCKD` names another one.

    In an editable installation the Python files lie in the clone and duckd beside the distribution's metadata.
    Raises `OperatorError` when there is none.
    """
    chosen = os.environ.get("DUCKFLEET_DUCKD")
    if chosen:
        candidates = [Path(chosen)]
    else:
        candidates = [Path(__file__).parents[1] / "duckd" / "duckd"]
        with contextlib.suppress(metadata.PackageNotFoundError):
            candidates.append(Path(str(metadata.distribution("duckfleet").locate_file(str(_IN_PACKAGE)))))
    for path in candidates:
        if path.is_file() and os.access(path, os.X_OK):
            return path
    raise OperatorError(
        f"duckd is not at {' or '.join(map(str, candidates))}: install duckfleet again, or set DUCKFLEET_DUCKD"
    )
