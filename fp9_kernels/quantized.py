"""Matrices of codes: rounding, exact conversions and pieces that keep their place among the 128x128 tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import _kernels

FORMATS = ("f32", "bf16", "e4m3", "fp9")  # index = format id in chunks
TILE = 128

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]


class NotFiniteError(ValueError):
    """A weight is a NaN or infinite; the message says where."""


def tiles(start: int, count: int) -> int:
    """Tiles of 128 that [start, start + count) touches."""
    return 0 if count == 0 else (start + count + TILE - 1) // TILE - start // TILE


@cache
def decode_table(format: str) -> F32:
    """What each code is worth: e4m3 [256], fp9 [512] (sign << 8 | body). NaN codes are NaN."""
    table: F32 = np.empty(256 if format == "e4m3" else 512, np.float32)
    _kernels.decode_table(format, table)
    table.flags.writeable = False
    return table


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A matrix, or a piece of one, in one of the formats (docs/formats.md).

    `codes` is [N, K]: f32 (format f32), u16 (bf16), u8 (e4m3 codes or fp9 bodies). `signs` is u8 [N, K] of 0 and 1 for
    fp9. `scales` is f32 [tiles(row0, N), tiles(col0, K)] for e4m3 and fp9. `row0` and `col0` are the piece's place in
    its matrix, from which tiles are counted.
    """

    format: str
    codes: npt.NDArray[Any]
    signs: U8 | None = None
    scales: F32 | None = None
    row0: int = 0
    col0: int = 0

    def __post_init__(self) -> None:
        dtype = {"f32": np.float32, "bf16": np.uint16, "e4m3": np.uint8, "fp9": np.uint8}.get(self.format)
        if dtype is None:
            raise ValueError(f"format {self.format!r} is unknown; there are {', '.join(FORMATS)}")
        if self.codes.ndim != 2 or self.codes.dtype != dtype:
            raise ValueError(f"codes of {self.format} must be {np.dtype(dtype)} [N, K]")
        if (self.signs is not None) != (self.format == "fp9"):
            raise ValueError("fp9 has signs, other formats have none")
        if self.signs is not None and (self.signs.shape != self.codes.shape or self.signs.dtype != np.uint8):
            raise ValueError("signs must be uint8 of the shape of codes")
        if (self.scales is not None) != self.has_scales:
            raise ValueError("e4m3 and fp9 have scales, other formats have none")
        want = (tiles(self.row0, self.codes.shape[0]), tiles(self.col0, self.codes.shape[1]))
        if self.scales is not None and (self.scales.shape != want or self.scales.dtype != np.float32):
            raise ValueError(f"scales must be float32 {list(want)}, one for each tile that the matrix touches")

    @property
    def shape(self) -> tuple[int, int]:
        return (self.codes.shape[0], self.codes.shape[1])

    @property
    def has_scales(self) -> bool:
        return self.format in ("e4m3", "fp9")

    @staticmethod
    def from_e4m3(codes: U8, scale_inv: F32) -> Quantized:
        """An FP8 checkpoint's tensor: OCP e4m3fn codes [N, K] and the factor of each 128x128 block ("scale_inv")."""
        return Quantized(
            "e4m3",
            np.ascontiguousarray(codes, dtype=np.uint8),
            scales=np.ascontiguousarray(scale_inv, dtype=np.float32),
        )

    @staticmethod
    def from_bf16_bits(bits: U16) -> Quantized:
        """A bf16 tensor as its bits, u16 [N, K]."""
        return Quantized("bf16", np.ascontiguousarray(bits, dtype=np.uint16))

    def as_format(self, format: str) -> Quantized:
        """The same values in another format, exactly: e4m3 to fp9, bf16 to f32. Others raise ValueError."""
        if format == self.format:
            return self
        if (self.format, format) == ("bf16", "f32"):
            return replace(self, format="f32", codes=self.dequantize())
        if (self.format, format) != ("e4m3", "fp9"):
            raise ValueError(f"{self.format} does not convert to {format} without loss; round it with quantize()")
        table = _fp9_of_e4m3()
        bodies = table[self.codes & 0x7F]
        if (bodies == 0xFF).any():
            row, col = np.argwhere(bodies == 0xFF)[0]
            raise NotFiniteError(f"row {row}, column {col}: the e4m3 code is a NaN")
        return replace(self, format="fp9", codes=bodies, signs=(self.codes >> 7).astype(np.uint8))

    def dequantize(self) -> F32:
        """code * scale as f32 [N, K]."""
        if self.format == "f32":
            return self.codes.astype(np.float32)
        if self.format == "bf16":
            return (self.codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
        assert self.scales is not None
        index = self.codes.astype(np.uint16)
        if self.signs is not None:
            index |= self.signs.astype(np.uint16) << np.uint16(8)
        values: F32 = decode_table(self.format)[index]
        rows = (self.row0 + np.arange(self.shape[0])) // TILE - self.row0 // TILE
        cols = (self.col0 + np.arange(self.shape[1])) // TILE - self.col0 // TILE
        for tile_row in range(self.scales.shape[0]):
            values[rows == tile_row] *= self.scales[tile_row][cols]
        return values

    def rows(self, r0: int, r1: int) -> Quantized:
        """Rows [r0, r1) of this piece."""
        self._check_range(r0, r1, self.shape[0], "rows")
        scales = self.scales
        if scales is not None:
            first = (self.row0 + r0) // TILE - self.row0 // TILE
            scales = scales[first : first + tiles(self.row0 + r0, r1 - r0)]
        signs = None if self.signs is None else self.signs[r0:r1]
        return replace(self, codes=self.codes[r0:r1], signs=signs, scales=scales, row0=self.row0 + r0)

    def cols(self, c0: int, c1: int) -> Quantized:
        """Columns [c0, c1) of this piece."""
        self._check_range(c0, c1, self.shape[1], "columns")
        scales = self.scales
        if scales is not None:
            first = (self.col0 + c0) // TILE - self.col0 // TILE
            scales = scales[:, first : first + tiles(self.col0 + c0, c1 - c0)]
        signs = None if self.signs is None else self.signs[:, c0:c1]
        return replace(self, codes=self.codes[:, c0:c1], signs=signs, scales=scales, col0=self.col0 + c0)

    def pad_rows(self, num_rows: int) -> Quantized:
        """The same with zero rows appended up to `num_rows` in all; new tiles have the scale 1."""
        return self._pad(num_rows - self.shape[0], 0)

    def pad_cols(self, num_cols: int) -> Quantized:
        """The same with zero columns appended up to `num_cols` in all; new tiles have the scale 1."""
        return self._pad(0, num_cols - self.shape[1])

    def _pad(self, more_rows: int, more_cols: int) -> Quantized:
        if more_rows < 0 or more_cols < 0:
            raise ValueError(f"a matrix of {list(self.shape)} cannot be padded to fewer rows or columns")
        widths = ((0, more_rows), (0, more_cols))
        scales = self.scales
        if scales is not None:
            new_tiles = (
                tiles(self.row0, self.shape[0] + more_rows) - scales.shape[0],
                tiles(self.col0, self.shape[1] + more_cols) - scales.shape[1],
            )
            scales = np.pad(scales, ((0, new_tiles[0]), (0, new_tiles[1])), constant_values=1)
        signs = None if self.signs is None else np.pad(self.signs, widths)
        return replace(self, codes=np.pad(self.codes, widths), signs=signs, scales=scales)

    @staticmethod
    def _check_range(start: int, end: int, limit: int, what: str) -> None:
        if not 0 <= start <= end <= limit:
            raise ValueError(f"{what} {start}..{end} are not within 0..{limit}")


@cache
def _fp9_of_e4m3() -> U8:
    """fp9 body of each e4m3 magnitude; 0xFF (no fp9 number) for the NaN."""
    fp9 = decode_table("fp9")[:256]
    bodies: U8 = np.full(128, 0xFF, np.uint8)
    for code, value in enumerate(decode_table("e4m3")[:128]):
        if np.isfinite(value):
            (bodies[code],) = np.flatnonzero(fp9 == value)
    return bodies


def quantize(w: F32, format: str) -> Quantized:
    """Round a whole matrix f32 [N, K], to nearest, ties to even; the scale of e4m3 and fp9 is amax/448 a tile.

    Raises NotFiniteError where a weight is a NaN or infinite, ValueError for an unknown format.
    """
    w = np.ascontiguousarray(w, dtype=np.float32)
    if w.ndim != 2:
        raise ValueError(f"a matrix has two dimensions, not {w.ndim}")
    if format == "f32":
        _require_finite(w)
        return Quantized("f32", w)
    if format == "bf16":
        _require_finite(w)
        bits: U16 = np.empty(w.shape, np.uint16)
        _kernels.round_bf16(w, bits)
        return Quantized("bf16", bits)
    if format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; there are {', '.join(FORMATS)}")
    codes: U8 = np.empty(w.shape, np.uint8)
    signs: U8 | None = np.empty(w.shape, np.uint8) if format == "fp9" else None
    scales: F32 = np.empty((tiles(0, w.shape[0]), tiles(0, w.shape[1])), np.float32)
    bad = _kernels.quantize(format, w, codes, signs, scales)
    if bad is not None:
        raise NotFiniteError(f"row {bad[0]}, column {bad[1]}: the weight {w[bad]} is not finite")
    return Quantized(format, codes, signs, scales)


def _require_finite(w: F32) -> None:
    if not np.isfinite(w).all():
        row, col = np.argwhere(~np.isfinite(w))[0]
        raise NotFiniteError(f"row {row}, column {col}: the weight {w[row, col]} is not finite")
