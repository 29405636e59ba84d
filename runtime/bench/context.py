"""A tiny DeepSeek-V3.2 generates to the end of its context: what a token takes as the context grows.

The ducks are in this process, their kernels the real ones. A token's arithmetic is a constant part (projections, the
attention to the chosen positions, experts) and the indexer's, which is linear in the context.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.decoder import Decoder, DecoderConfig
from duckfleet.runtime.decoder.config import DenseSpec, LayerSpec, MlaSpec
from duckfleet.runtime.decoder.indexer import top_positions
from duckfleet.runtime.decoder.kv_cache import KvCache, cache_bytes_per_token
from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import Checkpoint, ChunkStore, load_decoder, prepare

_WINDOW, _ROUNDS = 16, 12  # tokens before each mark, and how often: their median is the figure
_COLD_COPIES = 6  # of a cache, in turn, so that none is in the CPU's cache when it is read
_CONFIG: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "vocab_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 128,
    "kv_lora_rank": 320,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
    "index_n_heads": 16,
    "index_head_dim": 64,
    "index_topk": 256,
    "initializer_range": 0.1,
}


def rows(tokens: int = 16384, first: int = 1024) -> Iterator[dict[str, Any]]:
    """Rows at `first` and its doublings: us a token against the arithmetic, memory against the cache as computed."""
    marks = _marks(tokens, first)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-") as folder:
        decoder = _decoder(Path(folder), tokens)
        before = _resident_bytes()
        cache = decoder.new_cache(tokens)
        for tensor in (tensor for layer in cache.layers for tensor in layer):
            tensor.zero_()  # a page is resident once it is written
        cache_bytes = _resident_bytes() - before
        tokens_per_s, resident = _generate(decoder, cache, marks)
        yield {"name": f"generate/ctx{tokens}", "value": tokens_per_s, "unit": "tok/s"}
        yield from _time_rows(decoder.config, marks, *_measure(decoder, cache, marks))
        yield from _memory_rows(cache_bytes_per_token(decoder.config), cache_bytes / tokens, marks, resident)


def _marks(num_tokens: int, first: int) -> list[int]:
    if first < _WINDOW or num_tokens < 2 * first:
        raise OperatorError(f"--tokens {num_tokens} is too few: growth is measured from --first {first} on")
    marks = [first]
    while marks[-1] * 2 <= num_tokens:
        marks.append(marks[-1] * 2)
    return marks


def _decoder(folder: Path, max_positions: int) -> Decoder:
    from safetensors.torch import save_file

    from duckfleet.runtime.decoder.families import decoder_config
    from duckfleet.runtime.decoder.tensor_names import ffn_tensors, host_tensors

    raw = {**_CONFIG, "max_position_embeddings": max_positions}
    config = decoder_config(raw)
    torch.manual_seed(0)
    tensors = {}
    for name, shape in {**host_tensors(config), **ffn_tensors(config)}.items():
        is_norm = "norm" in name and name.endswith("weight")
        tensors[name] = torch.ones(shape) if is_norm else torch.randn(shape) * _CONFIG["initializer_range"]
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw))
    checkpoint = Checkpoint.open(folder)
    plan = prepare(checkpoint, "tiny-v3.2", folder / "chunks", tp=1)
    return load_decoder(checkpoint, LocalFabric(plan, ChunkStore(folder / "chunks").read), num_threads=1)


def _resident_bytes() -> int:
    """Of this process, after what is free was given back (where the C library can)."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def _generate(decoder: Decoder, cache: KvCache, marks: Sequence[int]) -> tuple[float, dict[int, int]]:
    """Tokens a second from an empty cache to a full one, and resident bytes of this process at each mark."""
    resident: dict[int, int] = {}
    token = 1
    began = time.perf_counter()
    for length in range(1, cache.max_len + 1):
        logits = decoder.forward([token], cache)
        # Every token once in a while: a model of random weights would repeat itself.
        token = (int(logits[-1].argmax()) + length) % decoder.vocab_size
        if length in marks:
            resident[length] = _resident_bytes()
    return cache.max_len / (time.perf_counter() - began), resident


def _measure(decoder: Decoder, cache: KvCache, marks: Sequence[int]) -> tuple[dict[int, float], float]:
    """Microseconds a token before each mark of a full cache, and what the indexer alone adds from first to last.

    All in turn, many times over: what disturbs the machine disturbs them all.
    """
    times_us: dict[int, list[float]] = {mark: [] for mark in marks}
    grown_us = []
    alone_first, alone_last = _IndexerAlone(decoder.config, marks[0]), _IndexerAlone(decoder.config, marks[-1])
    for _ in range(_ROUNDS):
        for mark in marks:
            cache.length = mark - _WINDOW
            for token in range(_WINDOW):
                began = time.perf_counter()
                decoder.forward([token], cache)
                times_us[mark].append(1e6 * (time.perf_counter() - began))
        for _ in range(_WINDOW):
            grown_us.append(alone_last.run_us() - alone_first.run_us())
    return {mark: statistics.median(times) for mark, times in times_us.items()}, statistics.median(grown_us)


def _time_rows(
    config: DecoderConfig, marks: Sequence[int], times_us: dict[int, float], alone_us: float
) -> Iterator[dict[str, Any]]:
    first = marks[0]
    for mark in marks:
        expected = times_us[first] * multiplications(config, mark) / multiplications(config, first)
        yield {
            "name": f"decode/ctx{mark}",
            "value": times_us[mark],
            "unit": "us a token, lower is better",
            "ratio": times_us[mark] / expected,
            "against": f"ctx{first} times what the arithmetic grows by, same run",
        }
    grown_us = times_us[marks[-1]] - times_us[first]
    yield {
        "name": f"decode/growth-to-ctx{marks[-1]}",
        "value": grown_us,
        "unit": "us a token, lower is better",
        "ratio": grown_us / alone_us,
        "against": "the indexer's products and choice alone, same run",
    }


def _memory_rows(
    computed: int, allocated: float, marks: Sequence[int], resident: dict[int, int]
) -> Iterator[dict[str, Any]]:
    yield {
        "name": "memory/cache",
        "value": allocated,
        "unit": "resident bytes a token of context, lower is better",
        "ratio": allocated / computed,
        "against": "cache bytes a token as computed",
    }
    for before, mark in itertools.pairwise(marks):
        grown = (resident[mark] - resident[before]) / (mark - before)
        yield {
            "name": f"memory/growth-ctx{before}-{mark}",
            "value": grown,
            "unit": "resident bytes a token beyond the cache, lower is better",
            "ratio": grown / computed,
            "against": "cache bytes a token as computed",
        }


def multiplications(config: DecoderConfig, ctx: int) -> int:
    """Of one decoded token that stands at the end of a context of `ctx` tokens."""
    return config.hidden * config.vocab_size + sum(_of_layer(layer, config.hidden, ctx) for layer in config.layers)


def _of_layer(layer: LayerSpec, hidden: int, ctx: int) -> int:
    mla, ffn = layer.attention, layer.ffn
    assert isinstance(mla, MlaSpec)
    if isinstance(ffn, DenseSpec):
        total = 3 * hidden * ffn.intermediate
    else:
        width = ffn.router.top_k * ffn.intermediate + ffn.shared_intermediate
        total = hidden * (3 * width + ffn.router.num_experts)
    heads, rank = mla.num_heads, mla.kv_lora_rank
    q_in = hidden if mla.q_lora_rank is None else mla.q_lora_rank
    total += hidden * (rank + mla.qk_rope_head_dim) + (q_in != hidden) * hidden * q_in
    total += q_in * heads * mla.qk_head_dim + heads * mla.v_head_dim * hidden
    total += heads * rank * (mla.qk_nope_head_dim + mla.v_head_dim)  # absorbed
    seen = ctx
    if mla.indexer is not None:
        index = mla.indexer
        seen = min(ctx, index.top_k)
        total += q_in * index.num_heads * index.head_dim + hidden * (index.head_dim + index.num_heads)
        if ctx > index.top_k:
            total += ctx * index.num_heads * (index.head_dim + 1)
    return total + heads * seen * (2 * rank + mla.qk_rope_head_dim)


class _IndexerAlone:
    """The part of a token that grows, for the layers of a config, over keys that are in no cache of the CPU."""

    def __init__(self, config: DecoderConfig, ctx: int) -> None:
        self._layers = []
        for layer in config.layers:
            assert isinstance(layer.attention, MlaSpec) and layer.attention.indexer is not None
            index = layer.attention.indexer
            q, weights = torch.randn(index.num_heads, index.head_dim), torch.randn(index.num_heads)
            keys = [torch.randn(ctx, index.head_dim) for _ in range(_COLD_COPIES)]
            self._layers.append((q, weights, itertools.cycle(keys), index.top_k))

    def run_us(self) -> float:
        began = time.perf_counter()
        for q, weights, keys, top_k in self._layers:
            top_positions(((next(keys) @ q.T).relu_() @ weights)[None], top_k)
        return 1e6 * (time.perf_counter() - began)
