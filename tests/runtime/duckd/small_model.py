"""Chunks of a small model, and the right answer of a slice by the same kernels in this process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import ChunkSection, Shard, chunk_digest, encode_chunk, quantize
from duckfleet.runtime.control import Assignment

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]

MODEL_DIGEST = "ab" * 32


@dataclass(frozen=True)
class SmallModel:
    """Layer 0 is dense; layer 1 has experts. One rank's slice of each, in parts."""

    format: str = "fp9"
    hidden: int = 144
    intermediate: int = 160
    num_layers: int = 3  # layer 2 holds nothing
    num_experts: int = 6
    tp: int = 3
    rank: int = 1
    parts: int = 2
    seed: int = 11

    def chunk(self, layer: int, part: int, slice_: int | None = None) -> bytes:
        rng = np.random.default_rng([self.seed, layer, part, self.rank if slice_ is None else slice_])
        sections = []
        for expert in range(1 if layer == 0 else self.num_experts):
            col0, num_cols = 32 * part, 32
            gate = quantize(rng.standard_normal((self.intermediate, self.hidden), np.float32) * 0.1, self.format)
            up = quantize(rng.standard_normal((self.intermediate, self.hidden), np.float32) * 0.1, self.format)
            down = quantize(rng.standard_normal((self.hidden, self.intermediate), np.float32) * 0.1, self.format)
            rows = slice(col0, col0 + num_cols)
            sections.append(
                ChunkSection(
                    expert,
                    col0,
                    gate.rows(rows.start, rows.stop),
                    up.rows(rows.start, rows.stop),
                    down.cols(rows.start, rows.stop),
                )
            )
        place = self.rank if slice_ is None else slice_
        return encode_chunk(layer, place, part, self.hidden, self.intermediate, self.format, sections)

    def chunks(self) -> list[bytes]:
        return [self.chunk(layer, part) for layer in range(2) for part in range(self.parts)]

    def assignment(self, chunks: list[bytes] | None = None, generation: int = 1) -> Assignment:
        return Assignment(
            generation=generation,
            rank=self.rank,
            tp=self.tp,
            format=self.format,
            hidden=self.hidden,
            num_layers=self.num_layers,
            model_digest=MODEL_DIGEST,
            digests=tuple(chunk_digest(chunk) for chunk in (self.chunks() if chunks is None else chunks)),
        )


class Oracle:
    """The vectors that a duck with these chunks must send."""

    def __init__(self, chunks: list[bytes]) -> None:
        self._shard = Shard(threads=1)
        self._parts: dict[tuple[int, int], list[int]] = {}
        for chunk in chunks:
            layer, place, part = self._shard.add_chunk(chunk)
            self._parts.setdefault((layer, place), []).append(part)

    def part(self, layer: int, place: int, part: int, x: F32, experts: U32 | None, weights: F32 | None) -> F32:
        return self._shard.ffn_part(layer, place, part, x, experts, weights)

    def whole(self, layer: int, place: int, x: F32, experts: U32 | None = None, weights: F32 | None = None) -> F32:
        total: F32 | None = None
        for part in sorted(self._parts[layer, place]):
            y = self.part(layer, place, part, x, experts, weights)
            total = y if total is None else total + y
        assert total is not None
        return total
