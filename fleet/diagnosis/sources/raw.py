"""What all parsers need: bounded numbers, times, and the words for a text that is no answer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from duckfleet.fleet.diagnosis.observation import Unreadable

MAX_DIGITS = 20
QUOTED_LEN = 90


def not_an_answer(text: str) -> Unreadable:
    """For a shell's complaint, an error message, another program's output: quotes its first line."""
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    if not first:
        return Unreadable("gave nothing")
    return Unreadable(f"said {first[:QUOTED_LEN]!r}")


def integer(text: str | None) -> int | None:
    """A decimal number of at most 20 digits, with or without sign; anything else is None."""
    if text is None:
        return None
    digits = text.strip()
    unsigned = digits.removeprefix("-")
    if not (0 < len(unsigned) <= MAX_DIGITS and unsigned.isascii() and unsigned.isdigit()):
        return None
    return int(digits)


def hexadecimal(text: str | None) -> int | None:
    """A number like 0x1f of at most 16 digits."""
    if text is None:
        return None
    digits = text.strip().lower().removeprefix("0x")
    if not (0 < len(digits) <= 16 and all(digit in "0123456789abcdef" for digit in digits)):
        return None
    return int(digits, 16)


def moment(text: Any) -> datetime | None:
    """ISO 8601 with or without zone; without one it is UTC."""
    if not isinstance(text, str) or len(text) > 40:
        return None
    try:
        parsed = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    try:
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except OverflowError:
        return None


def json_object(text: str) -> Mapping[str, Any]:
    """The JSON object that the text is; a tool's `{"error": …}` is `Unreadable`, as is anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise not_an_answer(text) from None
    if not isinstance(value, dict):
        raise not_an_answer(text)
    if "error" in value:
        raise Unreadable(f"said {str(value['error'])[:QUOTED_LEN]!r}")
    return value


def table(value: Any, key: str) -> Mapping[str, Any]:
    """The inner object, or an empty one."""
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def rows(value: Any, key: str) -> list[Any]:
    """The inner list, or an empty one."""
    inner = value.get(key) if isinstance(value, Mapping) else None
    return inner if isinstance(inner, list) else []


def number(value: Any) -> float | None:
    """A finite JSON number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return as_float if math.isfinite(as_float) else None


def whole(value: Any) -> int | None:
    """A JSON number without a fraction."""
    as_float = number(value)
    return int(as_float) if as_float is not None and as_float == int(as_float) else None


def words(value: Any) -> str:
    """A JSON string, or nothing."""
    return value if isinstance(value, str) else ""
