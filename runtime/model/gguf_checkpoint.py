"""A GGUF file as a checkpoint: names and layouts of `transformers` in front of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, RowReader, bytes_digest
from .errors import BadCheckpoint
from .gguf_file import BLOCK_NAMES, EXPERT_NAMES, MODEL_NAMES, GgufIndex, GgufRegion, open_index, undo_interleave
from .tensors import StoredTensor, TensorInfo

_BLOCK = re.compile(r"^blk\.(\d+)\.([a-z_]+)\.(weight|bias)$")
_EXPERT = re.compile(r"^(model\.layers\.\d+\.mlp\.experts)\.(\d+)\.(\w+_proj)\.weight$")


class GgufCheckpoint(Checkpoint):
    """See `Checkpoint`."""

    def __init__(self, path: Path, derived: Path | None = None) -> None:
        super().__init__(path, derived)
        self._index: GgufIndex = open_index(path, derived / "index.json" if derived else None)

    @property
    def raw_config(self) -> Mapping[str, Any]:
        return self._index.config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return {"eos_token_id": list(self._index.eos_token_ids)}

    @cached_property
    def _names(self) -> dict[str, str]:
        """Canonical name -> name in the file; a stack of experts is `<block>.experts.<matrix>`."""
        names: dict[str, str] = {}
        for gguf in self._index.regions:
            match = _BLOCK.match(gguf)
            if gguf in MODEL_NAMES:
                names[MODEL_NAMES[gguf]] = gguf
            elif match and match[2] in BLOCK_NAMES:
                names[f"model.layers.{match[1]}.{BLOCK_NAMES[match[2]]}.{match[3]}"] = gguf
            elif match and match[2] in EXPERT_NAMES:
                names[f"model.layers.{match[1]}.mlp.experts.{EXPERT_NAMES[match[2]]}"] = gguf
        return names

    def _locate(self, name: str) -> tuple[GgufRegion, int | None] | None:
        gguf = self._names.get(name)
        if gguf is not None:
            return self._index.regions[gguf], None
        match = _EXPERT.match(name)
        stack = self._names.get(f"{match[1]}.{match[3]}") if match else None
        if match is None or stack is None:
            return None
        region, expert = self._index.regions[stack], int(match[2])
        return (region, expert) if len(region.shape) == 3 and expert < region.shape[0] else None

    def find(self, name: str) -> TensorInfo | None:
        located = self._locate(name)
        if located is None:
            return None
        region, expert = located
        shape = region.shape if expert is None else region.shape[1:]
        num_bytes = region.num_bytes if expert is None else region.num_bytes // region.shape[0]
        return TensorInfo(name, shape, region.type.lower(), num_bytes)

    def read(self, name: str) -> StoredTensor:
        located, info = self._locate(name), self.find(name)
        if located is None or info is None:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        region, expert = located
        values = region.read_f32(expert)
        for projection, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if self._index.interleaved_qk and f".self_attn.{projection}." in name:
                values = undo_interleave(values, self._index.config[heads])
        return StoredTensor(info, values)

    def rows_of(self, name: str) -> RowReader:
        located = self._locate(name)
        if located is None or ".self_attn." in name:
            raise BadCheckpoint(f"{self.path} has no rows of {name}")
        return located[0].row_reader(located[1])

    def digest(self, name: str) -> str:
        located = self._locate(name)
        if located is None:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        return bytes_digest(located[0].read_bytes(located[1]).data)

    def unknown(self, used: set[str]) -> list[str]:
        known = {self._names[n] for n in used if n in self._names}
        for name in used:
            match = _EXPERT.match(name)
            if match:
                known.add(self._names.get(f"{match[1]}.{match[3]}", ""))
        return sorted(set(self._index.regions) - known)
