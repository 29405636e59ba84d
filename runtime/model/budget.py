"""What a model takes of the host's memory, counted before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.decoder.config import DecoderConfig
from duckfleet.runtime.decoder.kv_cache import cache_bytes_per_token
from duckfleet.runtime.decoder.tensor_names import host_tensors

from .tensors import SCALE_BLOCK, TensorInfo

_WEIGHT_BYTES = {"f32": 4.0, "bf16": 2.0, "e4m3": 1.0, "fp9": 1.125}
# torch, the tokenizer, activations and the process itself; a round figure that errs upwards.
RESERVE_BYTES = 1 << 30
_SMALLEST_CONTEXT = 128


class NotEnoughMemory(OperatorError):
    """The host has less memory than the model and its context take; the message says which context would fit."""


@dataclass(frozen=True, slots=True)
class HostBudget:
    """Bytes on the host. The embedding table is mapped from the checkpoint's file and counts as page cache."""

    attention_bytes: int  # projections, indexer
    router_bytes: int  # gates of mixtures of experts
    head_bytes: int
    norm_bytes: int  # norms and biases
    embedding_bytes: int
    cache_bytes_per_token: int
    ctx: int

    @property
    def weight_bytes(self) -> int:
        return self.attention_bytes + self.router_bytes + self.head_bytes + self.norm_bytes

    @property
    def cache_bytes(self) -> int:
        return self.ctx * self.cache_bytes_per_token

    @property
    def total_bytes(self) -> int:
        """What must fit: weights and cache; neither embedding nor reserve."""
        return self.weight_bytes + self.cache_bytes

    def lines(self) -> tuple[tuple[str, int], ...]:
        """(what, bytes) for a table; the last line is the sum of those before."""
        return (
            ("attention weights", self.attention_bytes),
            ("routers", self.router_bytes),
            ("head", self.head_bytes),
            ("norms and biases", self.norm_bytes),
            (f"KV cache of {self.ctx} tokens ({self.cache_bytes_per_token} bytes a token)", self.cache_bytes),
            ("sum", self.total_bytes),
        )

    def require(self, available_bytes: int) -> None:
        """Raises `NotEnoughMemory` where weights, cache and a reserve are more than what is available."""
        if self.total_bytes + RESERVE_BYTES <= available_bytes:
            return
        left = available_bytes - RESERVE_BYTES - self.weight_bytes
        fits = max(0, left // self.cache_bytes_per_token)
        useful = fits >= _SMALLEST_CONTEXT
        hint = f"--ctx {fits} would fit" if useful else "no useful context would fit beside the weights"
        raise NotEnoughMemory(
            f"a context of {self.ctx} tokens takes {self.cache_bytes / 2**30:.2f} GiB beside "
            f"{self.weight_bytes / 2**30:.2f} GiB of weights, but only {available_bytes / 2**30:.2f} GiB are available "
            f"on this host: {hint}"
        )


def host_budget(
    config: DecoderConfig, tensors: Mapping[str, TensorInfo], ctx: int, format: str | None = None
) -> HostBudget:
    """`tensors` tell the stored types; matrices rounded to `format` are counted in that one."""
    groups = {"attention": 0, "router": 0, "head": 0, "norm": 0, "embedding": 0}
    for name, shape in host_tensors(config).items():
        groups[_group(name, shape)] += _bytes(tensors[name], format)
    if config.tie_word_embeddings:
        groups["head"] = _bytes(tensors["model.embed_tokens.weight"], format)
    return HostBudget(
        attention_bytes=groups["attention"],
        router_bytes=groups["router"],
        head_bytes=groups["head"],
        norm_bytes=groups["norm"],
        embedding_bytes=tensors["model.embed_tokens.weight"].num_bytes,
        cache_bytes_per_token=cache_bytes_per_token(config),
        ctx=ctx,
    )


def _group(name: str, shape: tuple[int, ...]) -> str:
    if name == "model.embed_tokens.weight":
        return "embedding"
    if name == "lm_head.weight":
        return "head"
    if len(shape) < 2:
        return "norm"
    return "router" if ".mlp." in name else "attention"


def _bytes(info: TensorInfo, format: str | None) -> int:
    count = math.prod(info.shape)
    if len(info.shape) < 2 or ".mlp." in info.name:
        return 4 * count  # norms, biases and routers are used in f32
    stored = format or (info.stored if info.stored in _WEIGHT_BYTES else "f32")
    scales = 4 * math.prod(-(-n // SCALE_BLOCK) for n in info.shape) if stored in ("e4m3", "fp9") else 0
    return int(count * _WEIGHT_BYTES[stored]) + scales
