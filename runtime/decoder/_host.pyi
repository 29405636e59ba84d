"""Native part of duckfleet.runtime.decoder; the public interface is the package's."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels._kernels import PackedMatrix

F32 = npt.NDArray[np.float32]

LANES: int

class Cache:
    def __init__(self, max_len: int, layers: Sequence[tuple[F32, F32]]) -> None: ...

class Stack:
    def __init__(self, hidden: int, eps: float, threads: int, impl: str | None = None) -> None: ...
    def add_layer(
        self,
        *,
        input_norm: F32,
        ffn_norm: F32,
        qkv: Sequence[PackedMatrix],
        qkv_bias: F32 | None,
        out: PackedMatrix,
        out_bias: F32 | None,
        q_norm: F32 | None,
        k_norm: F32 | None,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope: int,
        rope_dim: int,
    ) -> None: ...
    def set_rope(self, index: int, cos: F32, sin: F32) -> None: ...
    def set_head(self, norm: F32, head: PackedMatrix) -> None: ...
    def begin(self, x: F32, sequences: Sequence[tuple[Cache, int, int]]) -> None: ...
    def attention(self, layer: int, last_ffn: F32 | None, ffn_in: F32) -> None: ...
    def logits(self, last_ffn: F32, rows: Sequence[int], out: F32) -> None: ...
