"""A server in a process of its own, free of torch so that it starts at once: says x for ever. For tests of signals."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from duckfleet.runtime.engine import Engine
from duckfleet.runtime.fabric.interface import ForwardTiming
from duckfleet.runtime.server import HttpServer, ServerSettings, configure_logging, create_app

VOCAB = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}


class PlainTokenizer:
    """One token a byte."""

    all_special_ids: tuple[int, ...] = ()
    bos_token_id = eos_token_id = None
    chat_template = "plain"

    def __init__(self) -> None:
        self.backend_tokenizer = Tokenizer(models.BPE(vocab=VOCAB, merges=[]))
        self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.backend_tokenizer.decoder = decoders.ByteLevel()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.backend_tokenizer.encode(text).ids

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        return "".join(message["content"] for message in conversation)


class Cache:
    length = 0

    def truncate(self, length: int) -> None:
        self.length = length


class Logits:
    """As much of a tensor as the engine uses."""

    def float(self) -> Logits:
        return self

    def cpu(self) -> Logits:
        return self

    def numpy(self) -> Any:
        row = np.zeros((1, len(VOCAB)), dtype=np.float32)
        row[0, VOCAB["x"]] = 20.0
        return row


class EndlessDecoder:
    vocab_size = len(VOCAB)
    eos_token_ids = ()
    timing = ForwardTiming(0.0, 0.0, 0.0, 0.0)

    def new_cache(self, max_len: int) -> Cache:
        return Cache()

    def forward(self, tokens: Sequence[int], cache: Any, *, all_logits: bool = False) -> Any:
        time.sleep(0.01)
        cache.length += len(tokens)
        return Logits()


def main() -> None:
    configure_logging(as_json=True)
    with Engine(EndlessDecoder(), PlainTokenizer(), ctx=100_000) as engine:
        http = HttpServer(create_app(engine, "tiny-llama", settings=ServerSettings(grace_s=float(sys.argv[1]))))
        print(http.url, flush=True)
        report = http.run()
    print("closed:", report, flush=True)


if __name__ == "__main__":
    main()
