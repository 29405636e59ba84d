"""What a number format does to a model's text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.compose.models import stored_model
from duckfleet.fleet.compose.progress import Progress, quiet


@dataclass(frozen=True, slots=True)
class Quality:
    """What one number format does to one text. `unrounded` is the yardstick."""

    text: str
    format: str
    num_tokens: int
    perplexity: float
    kl_mean: float  # nats a token, from the unrounded model
    kl_max: float
    top1_agreement: float


def evaluate(
    models_dir: Path,
    chunks_dir: Path,
    model: str,
    formats: Sequence[str],
    *,
    texts: Mapping[str, str] | None = None,
    num_threads: int = 1,
    progress: Progress = quiet,
) -> list[Quality]:
    """Rows of the unrounded model and of every format, on the texts that ship with us unless others are given."""
    from duckfleet.runtime.model import Checkpoint, load_tokenizer
    from duckfleet.runtime.model.evaluate import evaluate as evaluate_formats

    stored = stored_model(models_dir, model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    found = evaluate_formats(
        checkpoint,
        load_tokenizer(checkpoint),
        stored.name,
        chunks_dir,
        formats,
        on=texts,
        threads=num_threads,
        progress=progress,
    )
    return [
        Quality(row.text, row.format, row.num_tokens, row.perplexity, row.kl_mean, row.kl_max, row.top1_agreement)
        for row in found
    ]
