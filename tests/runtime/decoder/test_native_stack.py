"""The native host: the same bits whatever the batch, the chunks, the threads and the instruction set."""

import pytest
import torch
from transformers import Qwen3Config

from duckfleet.fp9_kernels import implementations
from duckfleet.runtime.decoder import Decoder, _host
from duckfleet.runtime.model.checkpoint import Checkpoint
from duckfleet.runtime.model.host_weights import CheckpointWeights
from tests.runtime.matrix_fabric import MatrixFabric
from tests.runtime.tiny_models import QWEN3, random_model, random_tokens, save


class RowFabric(MatrixFabric):
    """Each token by itself, so that a row's bits do not depend on torch's batches."""

    def _expert(self, layer, expert, x):
        return torch.cat([super(RowFabric, self)._expert(layer, expert, x[i : i + 1]) for i in range(len(x))])


@pytest.fixture(scope="module", params=[(4, 2, 16), (3, 1, 20), (7, 1, 12)], ids=str)
def checkpoint(request, tmp_path_factory):
    heads, kv_heads, head_dim = request.param
    config = {**QWEN3, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    model = random_model(Qwen3Config(**config, attention_bias=True))
    return Checkpoint.open(save(model, tmp_path_factory.mktemp("model")))


def make(checkpoint, threads=1, format="e4m3"):
    weights = CheckpointWeights(checkpoint, torch.device("cpu"), format, threads)
    decoder = Decoder(checkpoint.config, weights, RowFabric(checkpoint))
    assert decoder.is_native
    return decoder


def all_logits(decoder, tokens):
    return decoder.forward(tokens, decoder.new_cache(len(tokens)), all_logits=True)


@pytest.mark.parametrize("format", ["f32", "e4m3"])
def test_one_by_one_in_chunks_and_at_once_give_the_same_bits(checkpoint, format):
    decoder = make(checkpoint, format=format)
    tokens = random_tokens(75, decoder.vocab_size)
    at_once = all_logits(decoder, tokens)
    decoder.chunk_tokens = 13
    assert torch.equal(all_logits(decoder, tokens), at_once)
    cache = decoder.new_cache(75)
    one_by_one = torch.cat([decoder.forward([token], cache) for token in tokens])
    assert torch.equal(one_by_one, at_once)


def test_sequences_do_not_change_each_other(checkpoint):
    decoder = make(checkpoint, threads=2)
    tokens = random_tokens(60, decoder.vocab_size)
    prompts = [tokens[:17], tokens[17:18], tokens[18:]]
    alone = torch.cat([decoder.forward(prompt, decoder.new_cache(64)) for prompt in prompts])
    caches = [decoder.new_cache(64) for _ in prompts]
    assert torch.equal(decoder.forward_batch(list(zip(prompts, caches, strict=True))), alone)


def test_what_was_in_the_cache_before_changes_nothing(checkpoint):
    decoder = make(checkpoint)
    tokens = random_tokens(40, decoder.vocab_size)
    cache = decoder.new_cache(48)
    decoder.forward(tokens[::-1], cache)
    cache.truncate(0)
    assert torch.equal(decoder.forward(tokens, cache, all_logits=True), all_logits(decoder, tokens))


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_change_nothing(checkpoint, threads):
    one, several = make(checkpoint), make(checkpoint, threads)
    tokens = random_tokens(70, one.vocab_size)
    assert torch.equal(all_logits(several, tokens), all_logits(one, tokens))
    caches = one.new_cache(70), several.new_cache(70)
    for token in tokens:
        assert torch.equal(*(d.forward([token], c) for d, c in zip((one, several), caches, strict=True)))


@pytest.mark.parametrize("impl", implementations())
def test_every_implementation_gives_the_same_bits(checkpoint, impl, monkeypatch):
    monkeypatch.setenv("DUCKFLEET_KERNELS", "scalar")
    scalar = make(checkpoint)
    monkeypatch.setenv("DUCKFLEET_KERNELS", impl)
    other = make(checkpoint)
    tokens = random_tokens(70, scalar.vocab_size)
    assert torch.equal(all_logits(other, tokens), all_logits(scalar, tokens))


def test_a_cache_of_another_kind_is_refused(checkpoint):
    weights = CheckpointWeights(checkpoint, torch.device("cpu"))
    in_torch = Decoder(checkpoint.config, weights, RowFabric(checkpoint), native=False)
    with pytest.raises(ValueError, match="not one of this decoder's"):
        make(checkpoint).forward([1], in_torch.new_cache(4))


def test_arrays_of_the_wrong_shape_are_refused(checkpoint):
    decoder = make(checkpoint)
    cache, stack, hidden = decoder.new_cache(8), decoder._native._stack, checkpoint.config.hidden
    x = torch.zeros(2, hidden).numpy()
    for sequences in [], [(cache.handle, 0, 1)], [(cache.handle, 7, 2)], [(cache.handle, 0, 0), (cache.handle, 0, 2)]:
        with pytest.raises(ValueError):
            stack.begin(x, sequences)
    stack.begin(x, [(cache.handle, 0, 2)])
    out = torch.zeros(2, hidden).numpy()
    for layer, last, into in (99, x, out), (0, x, out), (1, None, out), (0, None, out[:1]), (1, x[:, :-1], out):
        with pytest.raises((ValueError, TypeError)):
            stack.attention(layer, last, into)
    with pytest.raises(ValueError):
        _host.Cache(8, [(torch.zeros(1, 2, 4, 16).numpy(), torch.zeros(1, 8, 16).numpy())])
