"""Packed little-endian structs as frozen dataclasses: one table of fields serves pack, unpack and the layout test."""

from __future__ import annotations

import struct
from dataclasses import fields
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

U8 = Annotated[int, "B"]
U16 = Annotated[int, "H"]
U32 = Annotated[int, "I"]
U64 = Annotated[int, "Q"]
F32 = Annotated[float, "f"]
Bytes3 = Annotated[bytes, "3s"]
Bytes4 = Annotated[bytes, "4s"]
Bytes7 = Annotated[bytes, "7s"]
Bytes16 = Annotated[bytes, "16s"]
Bytes24 = Annotated[bytes, "24s"]
Bytes32 = Annotated[bytes, "32s"]
Text16 = Annotated[str, "16s"]
Text32 = Annotated[str, "32s"]
Text64 = Annotated[str, "64s"]


class WireFormatError(ValueError):
    """Bytes that are not what the layout says; the message names the struct."""


class FieldLayout(NamedTuple):
    """Where a field lies in its struct, in bytes."""

    name: str
    offset: int
    size: int


class _Table(NamedTuple):
    codec: struct.Struct
    layout: tuple[FieldLayout, ...]
    is_text: tuple[bool, ...]


class Packed:
    """Base of every struct of wire.hpp. Subclasses are frozen dataclasses whose annotations are the types above."""

    __slots__ = ()
    _tables: ClassVar[dict[type, _Table]] = {}

    @classmethod
    def _table(cls) -> _Table:
        table = Packed._tables.get(cls)
        if table is None:
            hints = get_type_hints(cls, include_extras=True)
            names = [f.name for f in fields(cls)]  # type: ignore[arg-type]
            codes = [hints[name].__metadata__[0] for name in names]
            offset, layout = 0, []
            for name, code in zip(names, codes, strict=True):
                size = struct.calcsize("<" + code)
                layout.append(FieldLayout(name, offset, size))
                offset += size
            is_text = tuple(hints[name].__origin__ is str for name in names)
            table = Packed._tables[cls] = _Table(struct.Struct("<" + "".join(codes)), tuple(layout), is_text)
        return table

    @classmethod
    def layout(cls) -> tuple[FieldLayout, ...]:
        """Name, offset and size of each field, in order."""
        return cls._table().layout

    @classmethod
    def num_bytes(cls) -> int:
        """Size of the struct on the wire."""
        return cls._table().codec.size

    def pack(self) -> bytes:
        """The struct's bytes. Raises `WireFormatError` when a value does not fit its field."""
        table = self._table()
        values: list[Any] = []
        for (name, _, size), text in zip(table.layout, table.is_text, strict=True):
            value = getattr(self, name)
            if text:
                value = value.encode()
            if isinstance(value, bytes) and (len(value) > size if text else len(value) != size):
                raise WireFormatError(f"{type(self).__name__}.{name} has {len(value)} bytes, not {size}")
            values.append(value)
        try:
            return table.codec.pack(*values)
        except struct.error as error:
            raise WireFormatError(f"{type(self).__name__}: {error}") from None

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> Self:
        """From exactly this struct's bytes. Raises `WireFormatError` on any other length."""
        value, rest = cls.unpack_prefix(data)
        if len(rest):
            raise WireFormatError(f"{cls.__name__}: {len(rest)} bytes too many")
        return value

    @classmethod
    def unpack_prefix(cls, data: bytes | bytearray | memoryview) -> tuple[Self, memoryview]:
        """The struct at the start of `data`, and what follows it."""
        table = cls._table()
        view = memoryview(data)
        if len(view) < table.codec.size:
            raise WireFormatError(f"{cls.__name__}: {len(view)} bytes, {table.codec.size} needed")
        values = list(table.codec.unpack_from(view))
        for i, text in enumerate(table.is_text):
            if text:
                values[i] = values[i].rstrip(b"\0").decode(errors="replace")
        return cls(*values), view[table.codec.size :]
