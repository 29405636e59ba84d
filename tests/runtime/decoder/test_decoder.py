"""The decoder's own contract: bounds, batches, lanes, what is left after a failure."""

import pytest
import torch
from transformers import Qwen3MoeConfig

from duckfleet.runtime.decoder import ContextFull, Decoder
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.fabric.interface import ForwardTiming
from duckfleet.runtime.model.checkpoint import Checkpoint
from duckfleet.runtime.model.host_weights import CheckpointWeights
from tests.runtime.matrix_fabric import MatrixFabric
from tests.runtime.tiny_models import MOE, QWEN3, random_model, random_tokens, save


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    model = random_model(Qwen3MoeConfig(**QWEN3, **MOE, mlp_only_layers=[1]))
    return Checkpoint.open(save(model, tmp_path_factory.mktemp("model")))


@pytest.fixture
def fabric(checkpoint):
    return MatrixFabric(checkpoint)


@pytest.fixture
def decoder(checkpoint, fabric):
    return Decoder(checkpoint.config, CheckpointWeights(checkpoint, torch.device("cpu")), fabric)


def test_a_batch_of_sequences_equals_each_alone(decoder):
    tokens = random_tokens(30, decoder.vocab_size)
    prompts = [tokens[:11], tokens[11:12], tokens[12:]]
    alone = []
    for prompt in prompts:
        cache = decoder.new_cache(32)
        decoder.forward(prompt[:-1], cache) if len(prompt) > 1 else None
        alone.append(decoder.forward(prompt[-1:], cache))
    caches = [decoder.new_cache(32) for _ in prompts]
    together = decoder.forward_batch(list(zip(prompts, caches, strict=True)))
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)
    assert [c.length for c in caches] == [11, 1, 18]


def test_long_chunks_go_out_over_both_lanes(decoder, fabric):
    decoder.forward(random_tokens(300, decoder.vocab_size), decoder.new_cache(300))
    assert [r for r in fabric.requests if r[0] == 0] == [(0, 128, 0), (0, 128, 1), (0, 44, 0)]


def test_timing_is_the_sum_over_the_layers(decoder):
    decoder.forward([1], decoder.new_cache(4))
    assert decoder.timing == ForwardTiming(3.0, 6.0, 9.0, 12.0)


def test_a_full_context_is_refused_before_anything_runs(decoder, fabric):
    cache = decoder.new_cache(4)
    decoder.forward([1, 2, 3], cache)
    fabric.requests.clear()
    with pytest.raises(ContextFull, match="2 more tokens do not fit: 3 of the context's 4"):
        decoder.forward([1, 2], cache)
    assert cache.length == 3 and not fabric.requests


@pytest.mark.parametrize("max_len", [0, 513])
def test_a_cache_is_within_the_models_positions(decoder, max_len):
    with pytest.raises(ContextFull, match="512 positions"):
        decoder.new_cache(max_len)


@pytest.mark.parametrize("tokens", [[], [-1], [112]])
def test_tokens_outside_the_vocabulary_are_refused(decoder, tokens):
    with pytest.raises(ValueError, match="token"):
        decoder.forward(tokens, decoder.new_cache(4))


def test_after_a_lost_duck_the_same_forward_can_be_repeated(decoder, fabric):
    class FailsOnce(MatrixFabric):
        failed = False

        def wait(self, ticket, out):
            if not self.failed and len(self.requests) > 7:
                self.failed = True
                raise DuckLost("10.21.1.104")
            return super().wait(ticket, out)

    tokens = random_tokens(20, decoder.vocab_size)
    expected = decoder.forward(tokens, decoder.new_cache(32))
    checkpoint = fabric._checkpoint
    fragile = Decoder(
        checkpoint.config, CheckpointWeights(checkpoint, torch.device("cpu")), FailsOnce(checkpoint), chunk_tokens=8
    )
    cache = fragile.new_cache(32)
    with pytest.raises(DuckLost):
        fragile.forward(tokens, cache)
    assert cache.length == 0
    torch.testing.assert_close(fragile.forward(tokens, cache), expected, atol=1e-5, rtol=0)


def test_truncate_cannot_grow(decoder):
    cache = decoder.new_cache(8)
    decoder.forward([1, 2], cache)
    with pytest.raises(ValueError, match="cannot truncate"):
        cache.truncate(3)
