"""The Range header of a GET (RFC 9110, section 14): one range of bytes, or the whole file; pure."""

from __future__ import annotations

import re

_ONE_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.I)


class Unsatisfiable(ValueError):
    """The range lies outside the file: status 416."""


def parse_range(header: str | None, num_bytes: int) -> tuple[int, int] | None:
    """(first, past the last) of a single range; None for the whole file.

    A header we do not understand, or several ranges, may be ignored (RFC 9110, 14.2). Raises `Unsatisfiable`.
    """
    found = _ONE_RANGE.fullmatch((header or "").strip())
    if not found or found[0].endswith("=-") or max(len(found[1]), len(found[2])) > 18:
        return None
    if not found[1]:  # the last N bytes
        wanted = int(found[2])
        if wanted == 0 or num_bytes == 0:
            raise Unsatisfiable
        return max(0, num_bytes - wanted), num_bytes
    first = int(found[1])
    if found[2] and int(found[2]) < first:
        return None
    if first >= num_bytes:
        raise Unsatisfiable
    last = min(int(found[2]), num_bytes - 1) if found[2] else num_bytes - 1
    return first, last + 1
