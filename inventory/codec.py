"""Frozen records to and from canonical JSON: one text for one value, so that it can be digested and signed."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from typing import Any, TypeVar

from duckfleet.inventory.errors import OperatorError

_T = TypeVar("_T")


class BadRecord(OperatorError):
    """JSON that is not the record it should be; the message names the field."""


def to_plain(record: object) -> Any:
    """Dataclasses and tuples as dicts and lists, ready for `json`."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {name: to_plain(getattr(record, name)) for name in _field_names(type(record))}
    if isinstance(record, tuple | list):
        return [to_plain(item) for item in record]
    if isinstance(record, dict):
        return {str(key): to_plain(value) for key, value in record.items()}
    return record


def canonical_json(value: object) -> bytes:
    """Sorted keys, no blanks, UTF-8: what digests and signatures are made over."""
    return json.dumps(
        to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def from_plain(kind: type[_T], value: Any, where: str = "") -> _T:
    """Rebuild a record from what `to_plain` made. Raises `BadRecord` for missing, unknown or mistyped fields."""
    return typing.cast(_T, _read(kind, value, where or kind.__name__))


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_record(typing.cast(type, kind), value, where)
    origin = typing.get_origin(kind)
    if origin is tuple:
        item, *rest = typing.get_args(kind)
        if rest != [...] or not isinstance(value, list):
            raise BadRecord(f"{where} must be a list")
        return tuple(_read(item, element, f"{where}[{i}]") for i, element in enumerate(value))
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(kind):
            return None
        choices = [choice for choice in typing.get_args(kind) if choice is not type(None)]
        return _read(choices[0], value, where)
    if kind is float and type(value) is int:
        return float(value)
    if kind in (int, float, str, bool) and type(value) is not kind:
        raise BadRecord(f"{where} must be {kind.__name__}, not {value!r}")
    return value


def _read_record(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise BadRecord(f"{where} must be an object")
    hints = _hints(kind)
    for name in value:
        if name not in hints:
            raise BadRecord(f"{where}.{name} is not a field of {kind.__name__}: made by another version?")
    try:
        return kind(**{name: _read(hints[name], item, f"{where}.{name}") for name, item in value.items()})
    except TypeError as error:
        raise BadRecord(f"{where}: {error}") from error
