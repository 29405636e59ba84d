"""Streams the FFN weights of a checkpoint into logical chunks on disk.

One expert is in memory at a time: its three matrices in the chunks' format and, while one of them is rounded, that one
in f32. What is finished is in a journal, so that a run goes on where another was killed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from duckfleet.fp9_kernels import ChunkSection, Quantized, chunk_header, encode_section
from duckfleet.inventory.plan import ShardPlan
from duckfleet.runtime.decoder.tensor_names import FFN_MATRICES, expert_prefix, ffn_tensors, host_tensors
from duckfleet.runtime.planner import (
    DEFAULT_MAX_CHUNK_BYTES,
    BadPlan,
    ModelShape,
    check,
    cut,
    fill_digests,
    plan_from_json,
    plan_to_json,
    units,
)

from .checkpoint import Checkpoint, bytes_digest
from .chunk_store import ChunkStore, ChunkWriter
from .journal import Journal
from .progress import Progress, silent
from .quantization import to_format

_SPARE_BYTES = 64 << 20


def prepare(
    checkpoint: Checkpoint,
    name: str,
    store_dir: Path,
    *,
    tp: int,
    format: str | None = None,
    parts: int = 1,
    weights: Sequence[float] | None = None,
    max_chunk_bytes: int = DEFAULT_MAX_CHUNK_BYTES,
    progress: Progress = silent,
) -> ShardPlan:
    """The plan with all digests, its chunks in `store_dir`; what is there already is not made again.

    `format` None is the smallest lossless one. Raises `BadCheckpoint`, `NoSpace`, ValueError for plan parameters.
    """
    checkpoint.tensors  # noqa: B018 - complains about the whole checkpoint before anything is written
    shape = checkpoint.config.ffn_shape(name)
    plan = cut(shape, tp, parts, weights, format or checkpoint.native_format, max_chunk_bytes=max_chunk_bytes)
    key = bytes_digest(_fingerprint(checkpoint.path).encode(), plan_to_json(plan).encode())
    store = ChunkStore(store_dir)
    safe_name = re.sub(r"[^\w.-]", "-", name)
    file = store.plans / f"{safe_name}-{plan.format}-tp{tp}-{key[:12]}.json"
    ready = _finished(file, shape, store, even=weights is None)
    if ready is not None:
        return ready
    store.plans.mkdir(parents=True, exist_ok=True)
    with store.alone(progress):
        return _prepare_alone(checkpoint, plan, shape, store, file, key, even=weights is None, progress=progress)


def _prepare_alone(
    checkpoint: Checkpoint,
    plan: ShardPlan,
    shape: ModelShape,
    store: ChunkStore,
    file: Path,
    key: str,
    *,
    even: bool,
    progress: Progress,
) -> ShardPlan:
    ready = _finished(file, shape, store, even=even)  # another process may have made it while we waited
    if ready is not None:
        return ready
    with Journal(file.with_suffix(".journal"), key) as journal:
        for index, digest in list(journal.chunks.items()):
            if not store.is_sound(digest):
                del journal.chunks[index]
        pending = [i for i in range(len(plan.chunks)) if i not in journal.chunks]
        store.begin(sum(plan.chunks[i].num_bytes for i in pending), _SPARE_BYTES)
        _Preparation(checkpoint, plan, shape, store, journal, progress).run(pending)
        digests = [journal.chunks[i] for i in range(len(plan.chunks))]
        done = fill_digests(plan, digests, _model_digest(checkpoint, journal))
        temporary = file.with_suffix(".tmp")
        temporary.write_text(plan_to_json(done), encoding="utf-8")
        temporary.replace(file)
        journal.remove()
    store.partial.rmdir()
    return done


def load_plans(store_dir: Path) -> list[ShardPlan]:
    """Every finished plan of the store, by file name."""
    files = sorted((store_dir / "plans").glob("*.json"))
    return [plan_from_json(f.read_text(encoding="utf-8"), str(f)) for f in files]


def _finished(file: Path, shape: ModelShape, store: ChunkStore, *, even: bool) -> ShardPlan | None:
    """The plan of an earlier run, if it is sound and all of its chunks are there."""
    try:
        plan = plan_from_json(file.read_text(encoding="utf-8"), str(file))
    except (OSError, BadPlan):
        return None
    whole = not check(plan, shape, even=even) and all(store.has(c.digest, c.num_bytes) for c in plan.chunks)
    return plan if whole else None


def _fingerprint(path: Path) -> str:
    """Tells one state of the checkpoint's files from another without reading them."""
    files = [path] if path.is_file() else sorted([*path.glob("*.safetensors"), *path.glob("*config.json")])
    return json.dumps([[f.name, f.stat().st_size, f.stat().st_mtime_ns] for f in files])


def _model_digest(checkpoint: Checkpoint, journal: Journal) -> str:
    """Of the config and of every tensor's stored bytes, in the order of their names; files and shards do not matter."""
    h = hashlib.blake2b(digest_size=32)
    h.update(json.dumps(dataclasses.asdict(checkpoint.config), sort_keys=True).encode())
    for name in sorted({**host_tensors(checkpoint.config), **ffn_tensors(checkpoint.config)}):
        digest = journal.tensors.get(name) or checkpoint.digest(name)
        h.update(json.dumps([name, checkpoint.tensors[name].stored, digest]).encode())
    return h.hexdigest()


class _Preparation:
    """One run: walks layers and experts, keeps a writer open for each chunk under way."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        plan: ShardPlan,
        shape: ModelShape,
        store: ChunkStore,
        journal: Journal,
        progress: Progress,
    ) -> None:
        self._checkpoint, self._plan, self._shape = checkpoint, plan, shape
        self._store, self._journal, self._progress = store, journal, progress
        self._total_bytes = sum(c.num_bytes for c in plan.chunks)
        self._done_bytes = sum(plan.chunks[i].num_bytes for i in journal.chunks)
        self._open: dict[int, ChunkWriter] = {}

    def run(self, pending: list[int]) -> None:
        wanted: dict[tuple[int, int], list[int]] = defaultdict(list)  # (layer, expert) -> chunks that want it
        for index in pending:
            chunk = self._plan.chunks[index]
            for section in chunk.sections:
                wanted[chunk.layer, section.expert].append(index)
        try:
            for (layer, expert), indices in sorted(wanted.items()):
                self._write_expert(layer, expert, indices)
        finally:
            for writer in self._open.values():
                writer.abandon()

    def _write_expert(self, layer: int, expert: int, indices: list[int]) -> None:
        gate, up, down = self._matrices(layer, expert)
        ffn = self._shape.layers[layer]
        for index in indices:
            chunk = self._plan.chunks[index]
            writer = self._open.get(index)
            if writer is None:
                writer = self._open[index] = ChunkWriter(self._store, index)
                width = ffn.intermediate_of(chunk.sections[0].expert)
                writer.write(
                    chunk_header(
                        layer, chunk.slice, chunk.part, self._plan.hidden, width, self._plan.format, len(chunk.sections)
                    )
                )
            section = next(s for s in chunk.sections if s.expert == expert)
            first, last = section.col0, section.col0 + section.num_cols
            piece = ChunkSection(expert, first, gate.rows(first, last), up.rows(first, last), down.cols(first, last))
            before = writer.num_bytes
            for part in encode_section(piece, self._plan.hidden, self._plan.format):
                writer.write(part)
            self._done_bytes += writer.num_bytes - before
            if expert == chunk.sections[-1].expert:
                assert writer.num_bytes == chunk.num_bytes, f"chunk {index} came out at {writer.num_bytes} bytes"
                del self._open[index]
                self._journal.add_chunk(index, writer.finish())
        self._progress("prepare", self._done_bytes, self._total_bytes)

    def _matrices(self, layer: int, expert: int) -> tuple[Quantized, Quantized, Quantized]:
        """gate, up, down of one expert, columns padded with zeros to whole units."""
        prefix = expert_prefix(self._checkpoint.config, layer, expert)
        padded = units(self._shape.layers[layer].intermediate_of(expert)) * 16
        found: list[Quantized] = []
        for matrix in FFN_MATRICES:
            name = f"{prefix}{matrix}.weight"
            if name not in self._journal.tensors:
                self._journal.add_tensor(name, self._checkpoint.digest(name))
            q = to_format(self._checkpoint.read(name), self._plan.format)
            found.append(q.pad_cols(padded) if matrix == "down_proj" else q.pad_rows(padded))
        return found[0], found[1], found[2]
