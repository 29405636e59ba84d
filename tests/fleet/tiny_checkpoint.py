"""A checkpoint folder of a random tiny Qwen3 with a tokenizer: small enough to place and serve in a second."""

from __future__ import annotations

from pathlib import Path

from tests.runtime.conftest import train_byte_level
from tests.runtime.tiny_models import QWEN3, random_model, save


def make_checkpoint(folder: Path, seed: int = 0) -> Path:
    from transformers import Qwen3Config

    tokenizer = train_byte_level()
    config = Qwen3Config(
        **{
            **QWEN3,
            "vocab_size": len(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            "max_position_embeddings": 4096,
        }
    )
    save(random_model(config, seed), folder)
    tokenizer.save_pretrained(folder)
    return folder
