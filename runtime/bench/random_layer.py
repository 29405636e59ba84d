"""One FFN layer of a published model as one rank sees it, with random weights, and traffic that looks real."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import ChunkSection, Quantized, chunk_digest, encode_chunk
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.plan import ShardPlan
from duckfleet.runtime.model.catalogue import CatalogueEntry
from duckfleet.runtime.planner import FfnShape, ModelShape, cut, fill_digests

from .random_codes import random_codes

F32 = npt.NDArray[np.float32]
U32 = npt.NDArray[np.uint32]
TILE = 128


class RandomLayer:
    """The last layer of `entry` (a mixture where it has one), slice 0 of `tp`, as a plan for a single rank."""

    def __init__(self, entry: CatalogueEntry, tp: int, format: str, seed: int = 0) -> None:
        self.ffn: FfnShape = entry.shape(with_mtp=False).layers[-1]
        if format not in ("e4m3", "fp9"):
            raise OperatorError(f"layers of {entry.name} are measured in e4m3 and fp9, not in {format}")
        self._top_k = entry.experts_per_token
        self._random = np.random.default_rng(seed)
        self._seed = seed
        whole = cut(ModelShape(entry.name, entry.hidden, (self.ffn,)), tp, format=format)
        chunks = tuple(c for c in whole.chunks if c.slice == 0)
        self._plan = replace(whole, tp=1, chunks=chunks, holders=(tuple(range(len(chunks))),))

    @property
    def hidden(self) -> int:
        return self._plan.hidden

    def place(self) -> tuple[ShardPlan, Iterator[tuple[str, bytes]]]:
        """The plan with its digests, and its chunks one at a time. Weights are made twice, so that none are kept."""
        digests = [digest for digest, _ in self._chunks()]
        return fill_digests(self._plan, digests, f"{self._seed:064x}"), self._chunks()

    def _chunks(self) -> Iterator[tuple[str, bytes]]:
        random = np.random.default_rng(self._seed)
        for chunk in self._plan.chunks:
            sections = []
            for s in chunk.sections:
                gate, up = (self._matrix(random, s.num_cols, self.hidden, row0=s.col0) for _ in range(2))
                down = self._matrix(random, self.hidden, s.num_cols, col0=s.col0)
                sections.append(ChunkSection(s.expert, s.col0, gate, up, down))
            width = self.ffn.intermediate_of(chunk.sections[0].expert)
            data = encode_chunk(0, 0, chunk.part, self.hidden, width, self._plan.format, sections)
            yield chunk_digest(data), data

    def _matrix(self, random: np.random.Generator, rows: int, cols: int, row0: int = 0, col0: int = 0) -> Quantized:
        codes = random_codes(random, rows, cols)
        shape = tuple(-(-(a + n) // TILE) - a // TILE for a, n in ((row0, rows), (col0, cols)))
        scales = np.full(shape, 2.0**-12, np.float32)
        return Quantized("e4m3", codes, None, scales, row0, col0).as_format(self._plan.format)

    def step(self, num_tokens: int) -> tuple[F32, U32 | None, F32 | None]:
        """x, experts, weights of a forward unlike every other: each token has its own experts, the shared one last."""
        x = self._random.standard_normal((num_tokens, self.hidden)).astype(np.float32)
        if not self.ffn.num_experts:
            return x, None, None
        keys = self._random.random((num_tokens, self.ffn.num_experts))
        experts = np.sort(np.argpartition(keys, self._top_k, axis=1)[:, : self._top_k], axis=1)
        weights = self._random.random((num_tokens, self._top_k)) + 0.1
        weights /= weights.sum(axis=1, keepdims=True)
        if self.ffn.shared_intermediate:
            experts = np.concatenate([experts, np.full((num_tokens, 1), self.ffn.num_experts)], axis=1)
            weights = np.concatenate([weights, np.ones((num_tokens, 1))], axis=1)
        return x, experts.astype(np.uint32), weights.astype(np.float32)
