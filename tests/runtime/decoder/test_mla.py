"""Latent attention and its indexer: both forms of one sum, the choice of positions, and that the choice matters."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DeepseekV32Config

from duckfleet.runtime.decoder import Decoder
from duckfleet.runtime.decoder.indexer import _quantised, hadamard, top_positions
from duckfleet.runtime.decoder.kv_cache import cache_bytes_per_token
from duckfleet.runtime.model.checkpoint import Checkpoint
from duckfleet.runtime.model.host_weights import CheckpointWeights
from tests.runtime.matrix_fabric import MatrixFabric
from tests.runtime.tiny_models import DEEPSEEK, INDEXER, logits_of, random_model, random_tokens, save


@pytest.fixture(scope="module")
def model():
    return random_model(DeepseekV32Config(**DEEPSEEK, **INDEXER))


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    return Checkpoint.open(save(model, tmp_path_factory.mktemp("model")))


@pytest.fixture
def decoder(checkpoint):
    return Decoder(checkpoint.config, CheckpointWeights(checkpoint, torch.device("cpu")), MatrixFabric(checkpoint))


def test_absorbed_and_expanded_are_one_sum(decoder):
    attention = decoder._layers[0].attention
    torch.manual_seed(0)
    q, cached = torch.randn(9, 4, 24), torch.randn(40, 40)
    absorbed, expanded = attention._absorbed(q, cached, 31), attention._expanded(q, cached, 31)
    torch.testing.assert_close(absorbed, expanded, atol=1e-5, rtol=1e-5)
    one_at_a_time = [attention._absorbed(q[i : i + 1], cached[: 32 + i], 31 + i) for i in range(9)]
    torch.testing.assert_close(absorbed, torch.cat(one_at_a_time), atol=1e-5, rtol=1e-5)


def test_blocks_cover_every_row_once(decoder, monkeypatch):
    monkeypatch.setattr("duckfleet.runtime.decoder.mla._MAX_SCORE_BYTES", 4 * 4 * 50 * 3)
    blocks = decoder._layers[0].attention._blocks(10, 40)
    assert [(r.start, r.stop, seen) for r, seen in blocks] == [(0, 3, 43), (3, 6, 46), (6, 9, 49), (9, 10, 50)]


def test_all_positions_chosen_is_dense_attention(decoder):
    attention = decoder._layers[0].attention
    q, cached = torch.randn(3, 4, 24), torch.randn(12, 40)
    chosen = torch.arange(12).expand(3, 12)
    dense = torch.cat([attention._absorbed(q[i : i + 1], cached, 11) for i in range(3)])
    torch.testing.assert_close(attention._sparse(q, cached, chosen), dense, atol=1e-5, rtol=1e-5)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(deadline=None)
def test_of_equal_scores_the_earlier_position_wins(top_k, rows, seed):
    scores = np.random.default_rng(seed).integers(0, 4, (rows, 12)).astype(np.float32)
    expected = [sorted(np.argsort(-row, kind="stable")[:top_k]) for row in scores]
    assert top_positions(torch.from_numpy(scores), top_k).tolist() == np.array(expected).tolist()


@pytest.mark.parametrize("size", [1, 2, 8, 128])
def test_the_hadamard_transform_is_the_matrix(size):
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    x = torch.randn(5, 3, size)
    torch.testing.assert_close(hadamard(x), x @ matrix * size**-0.5, atol=1e-5, rtol=1e-5)
    y = torch.randn(5, 3, size)
    torch.testing.assert_close((hadamard(x) * hadamard(y)).sum(-1), (x * y).sum(-1), atol=1e-4, rtol=1e-4)


def test_the_indexer_matters_and_its_margins_are_wide(decoder, model, monkeypatch, record_property):
    """64 tokens, 8 of them attended to: another result than dense attention, and no choice is close to a tie."""
    margins = []

    def watched(scores, top_k):
        best = scores.topk(min(top_k + 1, scores.shape[1]), dim=-1).values
        if best.shape[1] > top_k:
            gap = (best[:, top_k - 1] - best[:, top_k])[best[:, top_k].isfinite()]
            margins.extend(gap.tolist())
        return top_positions(scores, top_k)

    monkeypatch.setattr("duckfleet.runtime.decoder.indexer.top_positions", watched)
    tokens = random_tokens(64, 112)
    sparse = decoder.forward(tokens, decoder.new_cache(64), all_logits=True)
    record_property("smallest_margin", min(margins))
    assert len(margins) == 3 * (64 - 8)
    assert min(margins) > 2e-6
    dense = Decoder(Checkpoint.open(decoder.fabric._checkpoint.path).config, decoder_weights(decoder), decoder.fabric)
    for layer in dense._layers:
        layer.attention._indexer = None
    difference = (dense.forward(tokens, dense.new_cache(64), all_logits=True) - sparse).abs()
    assert difference[:8].max() < 1e-5 < 1e-2 < difference[8:].max()
    torch.testing.assert_close(sparse, logits_of(model, tokens), atol=1e-4, rtol=0)


def decoder_weights(decoder):
    return CheckpointWeights(decoder.fabric._checkpoint, torch.device("cpu"))


def test_the_quantised_indexer_chooses_nearly_the_same(checkpoint, decoder):
    from dataclasses import replace

    config = checkpoint.config
    layers = tuple(
        replace(s, attention=replace(s.attention, indexer=replace(s.attention.indexer, quantised=True)))
        for s in config.layers
    )
    quantised = Decoder(replace(config, layers=layers), decoder_weights(decoder), decoder.fabric)
    tokens = random_tokens(40, 112)
    exact = decoder.forward(tokens, decoder.new_cache(40), all_logits=True)
    rounded = quantised.forward(tokens, quantised.new_cache(40), all_logits=True)
    torch.testing.assert_close(rounded[:8], exact[:8], atol=1e-5, rtol=0)  # nothing to choose yet
    assert 0 < (rounded[8:] - exact[8:]).abs().mean() < 1


def test_quantised_vectors_are_e4m3_times_a_power_of_two():
    """Against every e4m3 value, by search: the nearest, of two as near the even one (OCP 8-bit floating point)."""
    values = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double()  # all that are >= 0, ascending
    x = torch.randn(64, 32) * torch.logspace(-3, 3, 64)[:, None]
    rotated = hadamard(x).double()
    for row, got in zip(rotated, _quantised(x).double(), strict=True):
        scale = 2.0 ** math.ceil(math.log2(row.abs().max().item() / 448))
        distance = ((row.abs() / scale)[:, None] - values).abs()
        nearest = values[distance.argmin(dim=1)]
        even = distance.gather(1, (distance.argmin(dim=1, keepdim=True) + 1).clamp(max=126)) > distance.min(1, True)[0]
        assert torch.equal((got.abs() / scale)[even[:, 0]], nearest[even[:, 0]])
        assert even.float().mean() > 0.9


def test_the_cache_is_the_latents_the_rotated_key_and_the_index_key(decoder):
    cache = decoder.new_cache(10)
    assert [tuple(t.shape) for t in cache.layers[0]] == [(10, 32 + 8), (10, 32)]
    assert cache_bytes_per_token(decoder.config) == 3 * 4 * (32 + 8 + 32)
