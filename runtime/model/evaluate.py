"""What a format costs: perplexity, and divergence from the unrounded model, on texts that ship with the product."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint
from .chunk_store import ChunkStore
from .load import load_decoder
from .prepare import prepare
from .progress import Progress, silent

if TYPE_CHECKING:
    import torch

    from duckfleet.runtime.decoder import Decoder

TEXTS = ("story", "manual", "dialogue")
_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True)
class FormatQuality:
    """How one format does on one text, over the tokens after the first. `unrounded` is the yardstick itself."""

    format: str
    text: str
    num_tokens: int
    perplexity: float
    kl_mean: float  # nats a token, KL(unrounded || format)
    kl_max: float
    top1_agreement: float  # share of tokens whose likeliest successor is the same


def texts() -> dict[str, str]:
    """The texts of the product, by name."""
    folder = files("duckfleet.runtime.data").joinpath("texts")
    return {name: folder.joinpath(f"{name}.txt").read_text(encoding="utf-8") for name in TEXTS}


def evaluate(
    checkpoint: Checkpoint,
    tokenizer: Any,
    name: str,
    store_dir: Path,
    formats: Sequence[str],
    *,
    on: Mapping[str, str] | None = None,
    threads: int = 1,
    progress: Progress = silent,
) -> tuple[FormatQuality, ...]:
    """Rows of `unrounded` and of every format, text by text, computed in this process with the ducks' kernels.

    `unrounded` is the checkpoint in its lossless format. `on` are texts by name, those of the product where None.
    """
    from duckfleet.runtime.fabric import LocalFabric

    tokens = {text: tokenizer.encode(body) for text, body in (texts() if on is None else on).items()}
    total = sum(map(len, tokens.values())) * (1 + len(formats))
    store, rows, done = ChunkStore(store_dir), [], 0
    baseline: dict[str, torch.Tensor] = {}
    for format in (None, *formats):
        plan = prepare(checkpoint, name, store_dir, tp=1, format=format, progress=progress)
        fabric = LocalFabric(plan, store.read, threads=threads)
        decoder = load_decoder(checkpoint, fabric)
        for text, ids in tokens.items():
            logprobs = _logprobs(decoder, ids)
            if format is None:
                baseline[text] = logprobs
            rows.append(_compare(format or "unrounded", text, ids, logprobs, baseline[text]))
            done += len(ids)
            progress(f"evaluate {format or 'unrounded'} (tokens)", done, total)
        fabric.close()
    return tuple(rows)


def _logprobs(decoder: Decoder, ids: Sequence[int]) -> torch.Tensor:
    """[tokens, vocab] f32"""
    import torch

    cache = decoder.new_cache(len(ids))
    pieces = [
        decoder.forward(ids[i : i + _CHUNK_TOKENS], cache, all_logits=True).log_softmax(dim=-1)
        for i in range(0, len(ids), _CHUNK_TOKENS)
    ]
    return torch.cat(pieces)


def _compare(format: str, text: str, ids: Sequence[int], ours: torch.Tensor, theirs: torch.Tensor) -> FormatQuality:
    import torch

    successors = torch.tensor(ids[1:])
    nll = -ours[:-1].gather(1, successors[:, None])
    kl = torch.cat([_kl(theirs[i : i + 64], ours[i : i + 64]) for i in range(0, len(ids) - 1, 64)])[: len(ids) - 1]
    same = (ours[:-1].argmax(dim=-1) == theirs[:-1].argmax(dim=-1)).to(torch.float64)
    return FormatQuality(
        format=format,
        text=text,
        num_tokens=len(successors),
        perplexity=math.exp(float(nll.to(torch.float64).mean())),
        kl_mean=float(kl.mean()),
        kl_max=float(kl.max()),
        top1_agreement=float(same.mean()),
    )


def _kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """KL(p || q) of each row of log-probabilities, f64 nats."""
    p, q = p.double(), q.double()
    return (p.exp() * (p - q)).sum(dim=-1).clamp(min=0)
