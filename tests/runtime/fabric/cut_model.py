"""A small random model cut into chunks, and a slow float64 oracle of its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import ChunkSection, Quantized, chunk_digest, encode_chunk, quantize
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.runtime.planner import FfnShape, ModelShape, cut, fill_digests, units

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Expert:
    """gate, up [intermediate, hidden]; down [hidden, intermediate]; padded to whole units."""

    gate: Quantized
    up: Quantized
    down: Quantized


class CutModel:
    """Weights by (layer, expert), the plan, and every chunk's bytes by digest."""

    def __init__(
        self,
        shape: ModelShape,
        tp: int,
        *,
        parts: int = 1,
        weights: Sequence[float] | None = None,
        format: str = "f32",
        seed: int = 0,
        generation: int = 1,
    ) -> None:
        random = np.random.default_rng(seed)
        self.shape = shape
        self.experts: dict[tuple[int, int], Expert] = {}
        for layer, ffn in enumerate(shape.layers):
            for expert, num_cols in ffn.experts:
                padded = units(num_cols) * 16

                def matrix(rows: int, cols: int, pad_rows: int = 0, pad_cols: int = 0) -> Quantized:
                    w = random.standard_normal((rows, cols)).astype(np.float32) / np.float32(np.sqrt(cols))
                    return quantize(w, format).pad_rows(pad_rows or rows).pad_cols(pad_cols or cols)

                self.experts[layer, expert] = Expert(
                    gate=matrix(num_cols, shape.hidden, pad_rows=padded),
                    up=matrix(num_cols, shape.hidden, pad_rows=padded),
                    down=matrix(shape.hidden, num_cols, pad_cols=padded),
                )
        plan = cut(shape, tp, parts, weights, format, generation=generation, max_chunk_bytes=1 << 16)
        contents = [self._encode(chunk, format) for chunk in plan.chunks]
        self.plan: ShardPlan = fill_digests(plan, [chunk_digest(c) for c in contents], f"{seed:064x}")
        self.chunks = {chunk.digest: data for chunk, data in zip(self.plan.chunks, contents, strict=True)}

    def _encode(self, chunk: Chunk, format: str) -> bytes:
        sections = []
        for s in chunk.sections:
            expert = self.experts[chunk.layer, s.expert]
            end = s.col0 + s.num_cols
            sections.append(
                ChunkSection(
                    s.expert,
                    s.col0,
                    expert.gate.rows(s.col0, end),
                    expert.up.rows(s.col0, end),
                    expert.down.cols(s.col0, end),
                )
            )
        ffn = self.shape.layers[chunk.layer]
        intermediate = units(ffn.intermediate_of(chunk.sections[0].expert)) * 16
        return encode_chunk(chunk.layer, chunk.slice, chunk.part, self.shape.hidden, intermediate, format, sections)

    def chunk_bytes(self, chunk: Chunk) -> bytes:
        return self.chunks[chunk.digest]

    def inputs(self, layer: int, num_tokens: int, seed: int) -> tuple[F32, U32 | None, F32 | None]:
        """Random activations and, for a layer of experts, ascending routes; the shared expert comes last."""
        random = np.random.default_rng((seed, layer, num_tokens))
        x = random.standard_normal((num_tokens, self.shape.hidden)).astype(np.float32)
        ffn = self.shape.layers[layer]
        if not ffn.num_experts:
            return x, None, None
        top_k = min(3, ffn.num_experts)
        ids = np.stack([np.sort(random.choice(ffn.num_experts, top_k, replace=False)) for _ in range(num_tokens)])
        weights = random.random((num_tokens, top_k)).astype(np.float32)
        if ffn.shared_intermediate:
            ids = np.concatenate([ids, np.full((num_tokens, 1), ffn.num_experts)], axis=1)
            weights = np.concatenate([weights, np.ones((num_tokens, 1), np.float32)], axis=1)
        return x, np.ascontiguousarray(ids, dtype=np.uint32), np.ascontiguousarray(weights)

    def oracle(self, layer: int, x: F32, experts: U32 | None, weights: F32 | None) -> npt.NDArray[np.float64]:
        """The layer in float64, from the definition."""
        out = np.zeros(x.shape, np.float64)
        for t, row in enumerate(x.astype(np.float64)):
            chosen = [(0, 1.0)] if experts is None or weights is None else zip(experts[t], weights[t], strict=True)
            for expert, weight in chosen:
                e = self.experts[layer, int(expert)]
                gate = e.gate.dequantize().astype(np.float64) @ row
                up = e.up.dequantize().astype(np.float64) @ row
                out[t] += e.down.dequantize().astype(np.float64) @ (gate / (1 + np.exp(-gate)) * up * float(weight))
        return out


DENSE = ModelShape("tiny-dense", 80, (FfnShape(112), FfnShape(96), FfnShape(16)))
MOE = ModelShape("tiny-moe", 64, (FfnShape(64), FfnShape(48, num_experts=5, shared_intermediate=32)))
WIDE = ModelShape("wide", 64, (FfnShape(640), FfnShape(256, num_experts=4, shared_intermediate=512)))
