"""Packed weights and the kernels over them, from Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import _kernels
from duckfleet.fp9_kernels.chunks import scale_bytes, sign_bytes
from duckfleet.fp9_kernels.quantized import F32, NotFiniteError, Quantized


class PackedMatrix:
    """One matrix in panels, for the same kernels as the FFN's."""

    def __init__(self, native: _kernels.PackedMatrix) -> None:
        self._native = native

    @staticmethod
    def pack(q: Quantized) -> PackedMatrix:
        """Raises NotFiniteError at the first NaN code (row and column of `q`)."""
        signs = None if q.signs is None else sign_bytes(q)
        scales = None if q.scales is None else scale_bytes(q)
        codes = np.ascontiguousarray(q.codes).tobytes()
        try:
            native = _kernels.pack_matrix(
                q.format, codes, signs, scales, row0=q.row0, num_rows=q.shape[0], col0=q.col0, num_cols=q.shape[1]
            )
        except ValueError as error:
            raise NotFiniteError(str(error)) from error
        return PackedMatrix(native)

    @property
    def native(self) -> _kernels.PackedMatrix:
        """For other native modules."""
        return self._native

    @property
    def shape(self) -> tuple[int, int]:
        return (self._native.num_rows, self._native.num_cols)

    @property
    def num_bytes(self) -> int:
        return self._native.num_bytes

    def gemv(self, x: npt.NDArray[Any], impl: str | None = None, threads: int = 1, out: F32 | None = None) -> F32:
        """x f32 [M, K] times the transposed matrix: f32 [M, N], in canonical order. M may be any size.

        Raises ValueError for shapes that do not fit and for an unknown implementation.
        """
        x = np.require(x, np.float32, ["C", "A"])
        if out is None:
            out = np.empty((x.shape[0], self.shape[0]), np.float32)
        _kernels.gemv(self._native, x, out, impl, threads)
        return out

    def unpack(self, impl: str | None = None) -> F32:
        """code * scale as f32 [N, K], decoded by the given implementation."""
        out: F32 = np.empty(self.shape, np.float32)
        _kernels.unpack(self._native, out, impl)
        return out


class Shard:
    """Chunks of one duck and the FFN over them."""

    def __init__(self, impl: str | None = None, threads: int = 1) -> None:
        """Raises ValueError where the implementation is unknown or not usable on this CPU."""
        self._native = _kernels.Shard(impl, threads)

    @property
    def implementation(self) -> str:
        return self._native.implementation

    def add_chunk(self, chunk: bytes) -> tuple[int, int, int]:
        """Parse and pack a logical chunk; gives its (layer, slice, part). Raises ValueError where it is malformed."""
        return self._native.add_chunk(bytes(chunk))

    def ffn_part(
        self,
        layer: int,
        slice: int,
        part: int,
        x: npt.NDArray[Any],
        experts: npt.NDArray[Any] | None = None,
        weights: npt.NDArray[Any] | None = None,
    ) -> F32:
        """The part's vector of each token: x f32 [M, hidden] -> f32 [M, hidden].

        experts u32 [M, top_k] (distinct in each row) and weights f32 [M, top_k]; neither for a dense layer. Raises
        KeyError where no chunk of that part was added, ValueError for shapes that do not fit.
        """
        x = np.require(x, np.float32, ["C", "A"])
        out: F32 = np.empty(x.shape, np.float32)
        ids = None if experts is None else np.require(experts, np.uint32, ["C", "A"])
        factors = None if weights is None else np.require(weights, np.float32, ["C", "A"])
        self._native.ffn(layer, slice, part, x, ids, factors, out)
        return out


def implementations() -> list[str]:
    """Names of the kernels that this CPU can run, slowest first."""
    return _kernels.implementations()


def selected_implementation(impl: str | None = None) -> str:
    """The implementation that a call with this `impl` runs: a given name, DUCKFLEET_KERNELS, or the fastest."""
    return _kernels.selected(impl)


def tune_prefetch(threads: int = 1, impl: str | None = None) -> int:
    """Measures how far ahead of their reads kernels had best ask for weights on this machine, in bytes, and has them do
    so from now on in this process. Takes about 50 ms and 16 MiB a thread; changes no bits."""
    return _kernels.tune_prefetch(impl, threads)


def cpu_features() -> dict[str, bool]:
    """CPU features that the kernels and the data plane look at."""
    return _kernels.cpu_features()
