"""The model's own tokenizer and chat template, through `transformers`."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from duckfleet.runtime.dialect import Dialect, dialect_of

from .checkpoint import Checkpoint
from .errors import BadCheckpoint

log = logging.getLogger(__name__)


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """A `transformers` tokenizer. One made from a GGUF file's metadata is kept in `derived/tokenizer`.

    Raises `BadCheckpoint` where the checkpoint has none.
    """
    from transformers import AutoTokenizer

    # What is here is all there is: a tokenizer must never send this host to the network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    path = checkpoint.path
    try:
        if path.is_dir():
            return AutoTokenizer.from_pretrained(path)
        kept = checkpoint.derived / "tokenizer" if checkpoint.derived else None
        if kept is not None and _is_of(kept, path):
            return AutoTokenizer.from_pretrained(kept)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        if kept is not None:
            tokenizer.save_pretrained(kept)
            (kept / "made-from").write_text(_stamp(path), encoding="utf-8")
        return tokenizer
    except (OSError, ValueError, KeyError) as e:
        raise BadCheckpoint(f"{path} has no tokenizer that transformers can load: {e}") from e


def load_dialect(checkpoint: Checkpoint, tokenizer: Any) -> Dialect | None:
    """How the model is written to where its tokenizer has no chat template; None where it has one or nothing is known.

    A chat template that somebody put beside the model wins.
    """
    return None if tokenizer.chat_template else dialect_of(checkpoint.config.model_type)


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"


def _is_of(kept: Path, path: Path) -> bool:
    stamp = kept / "made-from"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _stamp(path)
