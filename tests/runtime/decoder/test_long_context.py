"""A context of 16,384 tokens: its memory is what was computed and stays so; decoding it equals running it in chunks."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DeepseekV32Config

from duckfleet.runtime.decoder.kv_cache import cache_bytes_per_token
from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import Checkpoint, ChunkStore, load_decoder, prepare
from tests.runtime.tiny_models import DEEPSEEK, DEEPSEEK_YARN, random_model, random_tokens, save

CTX, NUM_DECODE = 16_384, 24
CONFIG = DeepseekV32Config(
    **{
        **DEEPSEEK,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "max_position_embeddings": CTX,
        "rope_parameters": {**DEEPSEEK_YARN, "factor": CTX / 64},
        "index_n_heads": 4,
        "index_head_dim": 16,
        "index_topk": 64,
    }
)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    checkpoint = Checkpoint.open(save(random_model(CONFIG), folder / "model"))
    plan = prepare(checkpoint, "tiny", folder / "chunks", tp=3, format="f32")
    return load_decoder(checkpoint, LocalFabric(plan, ChunkStore(folder / "chunks").read))


class Allocations(TorchDispatchMode):
    """Bytes of every tensor that torch makes, views left out."""

    def __init__(self):
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        for made in result if isinstance(result, tuple | list) else (result,):
            if isinstance(made, torch.Tensor) and made.untyped_storage().data_ptr() not in given:
                self.num_bytes += made.numel() * made.element_size()
        return result


def step_bytes(decoder, cache, length):
    """What one decoded token at the end of `length` tokens takes of working memory, all of it counted."""
    kept = cache.length
    cache.length = length
    with Allocations() as made:
        decoder.forward([7], cache)
    cache.length = kept
    return made.num_bytes


def test_sixteen_thousand_tokens(decoder):
    cache = decoder.new_cache(CTX)
    places = [tensor.data_ptr() for layer in cache.layers for tensor in layer]
    tokens = random_tokens(CTX, decoder.vocab_size)
    decoder.forward(tokens[:-NUM_DECODE], cache)
    together = decoder.forward(tokens[-NUM_DECODE:], cache, all_logits=True)
    cache.truncate(CTX - NUM_DECODE)
    one_by_one = torch.cat([decoder.forward([token], cache) for token in tokens[-NUM_DECODE:]])
    torch.testing.assert_close(one_by_one, together, atol=1e-4, rtol=0)
    assert cache.length == CTX
    # The cache takes what was computed, from the first token to the last, and nothing was moved or made anew.
    assert [tensor.data_ptr() for layer in cache.layers for tensor in layer] == places
    held = sum(tensor.untyped_storage().nbytes() for layer in cache.layers for tensor in layer)
    assert held == CTX * cache_bytes_per_token(decoder.config) == CTX * 4 * (32 + 8 + 16)
    for layer in cache.layers:
        assert all(tensor[-1].any() for tensor in layer)


def test_a_step_works_on_scores_alone_beyond_what_it_attends_to(decoder):
    cache = decoder.new_cache(CTX)
    for tensor in (tensor for layer in cache.layers for tensor in layer):
        tensor.normal_()
    cache.length = CTX - 1
    step_bytes(decoder, cache, CTX - 1)  # RoPE's tables are made once
    short, middle, long = (step_bytes(decoder, cache, length) for length in (4095, 8191, CTX - 1))
    a_token = (middle - short) / 4096
    assert (long - middle) / 8192 == a_token  # linear: flat a token
    # Of each position: a product a head, their sum, and what the choice of the best takes.
    assert a_token <= 4 * 4 + 4 + 2
