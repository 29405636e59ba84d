"""A tokenizer and decoders for the tests of the engine and of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, PreTrainedTokenizerFast

from duckfleet.runtime.decoder import Decoder
from duckfleet.runtime.dialect.deepseek_v32 import ASSISTANT, BOS, EOS, USER, DeepSeekV32
from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.fabric.interface import ForwardTiming
from duckfleet.runtime.model import Checkpoint, load_decoder, prepare
from duckfleet.runtime.model.chunk_store import ChunkStore
from tests.runtime.tiny_models import COMMON, random_model, save

CORPUS = [
    "The quick brown duck jumps over the lazy dog. A fleet of ducks serves a model far too large for any one of them.",
    "user system assistant: what is the capital of France? Paris is the capital of France.",
    "0123456789 { } [ ] ( ) < > \n\n def main(): return None\n",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Role ' + m['role'] + ' is not known') }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def train_byte_level() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=384,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )


def train_deepseek_like(*, special_marks: bool = False) -> PreTrainedTokenizerFast:
    """DeepSeek-V3.2's tokens and no chat template. Tokenizers differ in whether marks are special."""
    backend = train_byte_level().backend_tokenizer
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in (BOS, EOS, USER, ASSISTANT)])
    marks = [AddedToken(t, special=special_marks, normalized=False) for t in DeepSeekV32().markers]
    (backend.add_special_tokens if special_marks else backend.add_tokens)(marks)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=BOS, eos_token=EOS)


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    return train_byte_level()


class ScriptCache:
    def __init__(self) -> None:
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return len(self.tokens)

    def truncate(self, length: int) -> None:
        del self.tokens[length:]


class ScriptDecoder:
    """A decoder whose next token is a function of all tokens so far; `gate` lets a test hold it between forwards."""

    def __init__(
        self, vocab_size: int, next_token: Callable[[list[int]], int], eos_token_ids: Sequence[int] = ()
    ) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.timing = ForwardTiming(1.0, 2.0, 3.0, 4.0)
        self.next_token = next_token
        self.fed: list[tuple[int, ...]] = []
        self.num_caches = 0
        self.gate: threading.Semaphore | None = None

    def new_cache(self, max_len: int) -> ScriptCache:
        self.num_caches += 1
        return ScriptCache()

    def forward(self, tokens: Sequence[int], cache: ScriptCache, *, all_logits: bool = False) -> torch.Tensor:
        if self.gate is not None:
            self.gate.acquire()
        self.fed.append(tuple(tokens))
        rows = []
        for token in tokens:
            cache.tokens.append(token)
            row = torch.zeros(self.vocab_size)
            row[self.next_token(cache.tokens)] = 20.0
            rows.append(row)
        return torch.stack(rows if all_logits else rows[-1:])


@dataclass(frozen=True)
class TinyLlama:
    """A random llama: our decoder over a local fabric of two ranks, and the model of `transformers` that it is from."""

    decoder: Decoder
    model: Any


@pytest.fixture(scope="session")
def llama(byte_level_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> TinyLlama:
    vocabulary = {"vocab_size": len(byte_level_tokenizer), "eos_token_id": byte_level_tokenizer.eos_token_id}
    model = random_model(LlamaConfig(**{**COMMON, **vocabulary}))
    folder = tmp_path_factory.mktemp("llama")
    checkpoint = Checkpoint.open(save(model, folder / "model"))
    plan = prepare(checkpoint, "tiny-llama", folder / "chunks", tp=2, format="f32")
    return TinyLlama(load_decoder(checkpoint, LocalFabric(plan, ChunkStore(folder / "chunks").read)), model)


@pytest.fixture(scope="session")
def script_decoder(byte_level_tokenizer: PreTrainedTokenizerFast) -> Callable[..., ScriptDecoder]:
    """Make a decoder that says the given text after the prompt of `prompt_len` tokens, then ends."""

    def make(text: str, prompt_len: int) -> ScriptDecoder:
        eos = byte_level_tokenizer.eos_token_id
        script = byte_level_tokenizer.encode(text, add_special_tokens=False)

        def next_token(tokens: list[int]) -> int:
            place = len(tokens) - prompt_len
            return script[place] if 0 <= place < len(script) else eos

        return ScriptDecoder(len(byte_level_tokenizer), next_token, [eos])

    return make
