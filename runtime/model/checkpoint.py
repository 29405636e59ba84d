"""A checkpoint on disk: its config, and its tensors one at a time, by the names that `transformers` gives them."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from duckfleet.runtime.decoder.config import DecoderConfig
from duckfleet.runtime.decoder.families import decoder_config
from duckfleet.runtime.decoder.tensor_names import ffn_tensors, host_tensors, layer_prefix

from .errors import BadCheckpoint
from .tensors import F32, StoredTensor, TensorInfo

_LISTED = 8  # names shown of each kind of complaint


RowReader: TypeAlias = Callable[[Sequence[int]], F32]
"""Rows of one matrix, by index: [len(rows), cols] f32."""


class Checkpoint(ABC):
    """Reading is by memory map, so what is held is what the caller holds."""

    def __init__(self, path: Path, derived: Path | None) -> None:
        self.path = path
        self.derived = derived  # folder for what can be made again from the checkpoint, or None

    @staticmethod
    def open(path: Path, derived: Path | None = None) -> Checkpoint:
        """A GGUF file, or a folder with config.json and safetensors. Nothing but metadata is read yet.

        Raises `BadCheckpoint`, `UnsupportedModel`.
        """
        if path.is_dir():
            from .safetensors_checkpoint import SafetensorsCheckpoint

            return SafetensorsCheckpoint(path, derived)
        if path.suffix == ".gguf" and path.is_file():
            from .gguf_checkpoint import GgufCheckpoint

            return GgufCheckpoint(path, derived)
        raise BadCheckpoint(f"{path} is neither a GGUF file nor a folder with config.json and safetensors")

    @property
    @abstractmethod
    def raw_config(self) -> Mapping[str, Any]:
        """The config with the keys of `transformers`, as far as the checkpoint states it."""

    @property
    @abstractmethod
    def generation_config(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def find(self, name: str) -> TensorInfo | None:
        """What is known of the tensor of this canonical name, without reading it."""

    @abstractmethod
    def read(self, name: str) -> StoredTensor:
        """The tensor in its stored type."""

    @abstractmethod
    def rows_of(self, name: str) -> RowReader:
        """Reads rows of a matrix without holding it."""

    @abstractmethod
    def digest(self, name: str) -> str:
        """BLAKE2b-256 of the stored bytes, hex."""

    @abstractmethod
    def unknown(self, used: set[str]) -> list[str]:
        """Tensors of the files that none of the canonical names in `used` stands for."""

    @cached_property
    def config(self) -> DecoderConfig:
        """With the MTP layers that the checkpoint really holds. Raises `UnsupportedConfig`."""
        config = decoder_config(self.raw_config, self.generation_config, with_mtp=True)
        held = [
            layer
            for i, layer in enumerate(config.mtp_layers, start=config.num_layers)
            if self.find(f"{layer_prefix(i)}input_layernorm.weight") is not None
        ]
        return replace(config, mtp_layers=tuple(held))

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """Every tensor that the config asks for. Raises `BadCheckpoint` listing the missing, unknown and misshapen."""
        expected = {**host_tensors(self.config), **ffn_tensors(self.config)}
        found = {name: self.find(name) for name in expected}
        complaints = [
            ("missing", [n for n, info in found.items() if info is None]),
            ("unknown", self.unknown(set(expected))),
            (
                "of the wrong shape",
                [
                    f"{n} is {list(info.shape)}, not {list(expected[n])}"
                    for n, info in found.items()
                    if info is not None and info.shape != expected[n]
                ],
            ),
        ]
        wrong = [f"{len(names)} {kind}: {_some(names)}" for kind, names in complaints if names]
        if wrong:
            raise BadCheckpoint(f"{self.path} does not hold the tensors of its config. " + "; ".join(wrong))
        return {n: info for n, info in found.items() if info is not None}

    @property
    def native_format(self) -> str:
        """The smallest of our formats that holds the FFN weights without loss."""
        stored = {self.tensors[n].stored for n in ffn_tensors(self.config)}
        if stored <= {"e4m3"}:
            return "e4m3"
        return "bf16" if stored <= {"bf16", "e4m3"} and "e4m3" not in stored else "f32"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def bytes_digest(*pieces: Any) -> str:
    """BLAKE2b-256 over buffers, hex."""
    h = hashlib.blake2b(digest_size=32)
    for piece in pieces:
        h.update(piece)
    return h.hexdigest()
