"""Tensors as a checkpoint stores them, and what their bytes mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
SCALE_BLOCK = 128  # rows and columns that share one scale of an FP8 checkpoint


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor that can be read: its canonical name (that of `transformers`), shape and stored type."""

    name: str
    shape: tuple[int, ...]
    stored: str  # "f32", "f16", "bf16", "e4m3" (with block scales), or a GGUF block type in lower case
    num_bytes: int  # as stored, scales included


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in memory, in its stored type.

    `data` is f32, f16, u16 (bf16 bits) or u8 (e4m3 codes) of `info.shape`; GGUF block types are given as f32 already.
    """

    info: TensorInfo
    data: npt.NDArray[np.generic]
    scale_inv: F32 | None = None  # [ceil(rows/128), ceil(cols/128)]; e4m3 only

    def to_f32(self) -> F32:
        """The values, `info.shape` f32."""
        if self.data.dtype == np.uint16:
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        if self.data.dtype == np.uint8:
            assert self.scale_inv is not None
            return dequantise_e4m3(self.data, self.scale_inv)
        return np.ascontiguousarray(self.data, dtype=np.float32)


def _e4m3_values() -> F32:
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    subnormal = mantissa * 2.0**-9
    magnitude = np.where(exponent == 0, subnormal, (8 + mantissa) * 2.0 ** (exponent - 10))
    values = np.where(codes & 128, -magnitude, magnitude)
    values[codes & 127 == 127] = np.nan  # OCP FP8 e4m3fn: all ones is NaN, there is no infinity
    return values.astype(np.float32)


E4M3_VALUES = _e4m3_values()


def dequantise_e4m3(codes: npt.NDArray[np.generic], scale_inv: F32) -> F32:
    """`code * scale_inv` of its 128x128 block, as the published FP8 checkpoints mean it. [rows, cols] f32."""
    rows, cols = codes.shape
    out: F32 = E4M3_VALUES[codes]
    for i in range(0, rows, SCALE_BLOCK):
        band = np.repeat(scale_inv[i // SCALE_BLOCK], SCALE_BLOCK)[:cols]
        out[i : i + SCALE_BLOCK] *= band
    return out
