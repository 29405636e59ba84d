"""A tokenizer and decoders for the tests of the engine and of the server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from duckfleet.runtime.engine.decoding import Cache
from duckfleet.runtime.fabric.interface import ForwardTiming

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


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    return train_byte_level()


class LlamaCache:
    def __init__(self, max_len: int) -> None:
        self.max_len = max_len
        self.state = DynamicCache()

    @property
    def length(self) -> int:
        return self.state.get_seq_length()

    def truncate(self, length: int) -> None:
        assert length <= self.length
        if length == 0:
            self.state = DynamicCache()
        elif length < self.length:
            self.state.crop(length - self.length)  # negative: so many go


class LlamaDecoder:
    """A random tiny llama of `transformers` behind the decoder's interface."""

    def __init__(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        torch.manual_seed(7)
        config = LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.3,
        )
        self.model = LlamaForCausalLM(config).eval()
        self.vocab_size = vocab_size
        self.eos_token_ids = tuple(eos_token_ids)
        self.timing = ForwardTiming(1.0, 2.0, 3.0, 4.0)

    def new_cache(self, max_len: int) -> LlamaCache:
        return LlamaCache(max_len)

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int], cache: Cache, *, all_logits: bool = False) -> torch.Tensor:
        assert isinstance(cache, LlamaCache)
        assert cache.length + len(tokens) <= cache.max_len
        logits = self.model(torch.tensor([list(tokens)]), past_key_values=cache.state).logits[0]
        return logits if all_logits else logits[-1:]


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

    def forward(self, tokens: Sequence[int], cache: Cache, *, all_logits: bool = False) -> torch.Tensor:
        assert isinstance(cache, ScriptCache)
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


@pytest.fixture(scope="session")
def llama(byte_level_tokenizer: PreTrainedTokenizerFast) -> LlamaDecoder:
    return LlamaDecoder(len(byte_level_tokenizer), [byte_level_tokenizer.eos_token_id])


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
