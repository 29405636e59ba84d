"""The host's share of a model, counted before it is loaded."""

import pytest
from transformers import Glm4MoeConfig

from duckfleet.runtime.decoder.linear import PackedLinear
from duckfleet.runtime.model import Checkpoint
from duckfleet.runtime.model.budget import RESERVE_BYTES, NotEnoughMemory, host_budget
from tests.runtime.tiny_models import QWEN3, ROUTED, random_model, save


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    model = random_model(Glm4MoeConfig(**QWEN3, **ROUTED, use_qk_norm=True))
    return Checkpoint.open(save(model, tmp_path_factory.mktemp("model")))


def test_every_byte_is_counted(checkpoint):
    budget = host_budget(checkpoint.config, checkpoint.tensors, ctx=100)
    assert budget.attention_bytes == 3 * 4 * 64 * (2 * 96 + 2 * 48)  # q, o; k, v
    assert budget.router_bytes == 2 * 4 * 16 * 64
    assert budget.head_bytes == budget.embedding_bytes == 4 * 112 * 64
    assert budget.norm_bytes == 4 * (7 * 64 + 3 * 2 * 24 + 2 * 16)
    assert budget.cache_bytes == 100 * 3 * 2 * 2 * 24 * 4
    lines = budget.lines()
    assert lines[-1] == ("sum", sum(b for _, b in lines[:-1])) == ("sum", budget.total_bytes)


@pytest.mark.parametrize(("format", "bytes_a_weight"), [("bf16", 2), ("e4m3", 1)])
def test_rounded_matrices_count_in_their_format(checkpoint, format, bytes_a_weight):
    exact = host_budget(checkpoint.config, checkpoint.tensors, ctx=1)
    rounded = host_budget(checkpoint.config, checkpoint.tensors, ctx=1, format=format)
    scales = 3 * 4 * 4 if format == "e4m3" else 0  # one tile a matrix, three layers
    assert rounded.attention_bytes == exact.attention_bytes // 4 * bytes_a_weight + scales
    assert rounded.router_bytes == exact.router_bytes


def test_what_does_not_fit_is_refused_with_what_would(checkpoint):
    budget = host_budget(checkpoint.config, checkpoint.tensors, ctx=100_000)
    budget.require(RESERVE_BYTES + budget.total_bytes)
    with pytest.raises(NotEnoughMemory, match=r"a context of 100000 tokens takes .* --ctx 99999 would fit"):
        budget.require(RESERVE_BYTES + budget.total_bytes - 1)
    with pytest.raises(NotEnoughMemory, match="no useful context would fit"):
        budget.require(RESERVE_BYTES)


def test_smollm2_takes_what_was_said(smollm2):
    import torch

    from duckfleet.runtime.model.host_weights import CheckpointWeights

    budget = host_budget(smollm2.config, smollm2.tensors, ctx=2048, format="bf16")
    weights = CheckpointWeights(smollm2, torch.device("cpu"), "bf16")
    prefix = "model.layers.0.self_attn."
    layer = [weights.linear(f"{prefix}{n}_proj") for n in "qkvo"]
    assert all(isinstance(m, PackedLinear) for m in layer)
    assert 30 * sum(m.num_bytes for m in layer) == pytest.approx(budget.attention_bytes, rel=0.02)
