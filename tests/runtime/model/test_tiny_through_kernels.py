"""Tiny models through plan, chunks and the ducks' kernels, for any number of ranks, against `transformers`."""

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV32Config, Glm4MoeConfig, Qwen3Config, Qwen3MoeConfig

from duckfleet.runtime.fabric import LocalFabric
from duckfleet.runtime.model import Checkpoint, ChunkStore, load_decoder, prepare
from duckfleet.runtime.model.reference import reference_model
from tests.runtime.tiny_models import (
    DEEPSEEK,
    DEEPSEEK_YARN,
    INDEXER,
    MOE,
    QWEN3,
    ROUTED,
    logits_of,
    random_model,
    random_tokens,
    save,
)

CONFIGS = {
    "qwen3": Qwen3Config(**QWEN3),
    "qwen3-tied": Qwen3Config(**QWEN3, tie_word_embeddings=True),
    "qwen3-moe": Qwen3MoeConfig(**QWEN3, **MOE, norm_topk_prob=True, mlp_only_layers=[1]),
    "qwen3-moe-sparse-step": Qwen3MoeConfig(**QWEN3, **MOE, norm_topk_prob=False, decoder_sparse_step=2),
    "deepseek-v3": DeepseekV3Config(**DEEPSEEK, rope_parameters=dict(DEEPSEEK_YARN)),
    "deepseek-v32": DeepseekV32Config(**DEEPSEEK, **INDEXER, rope_parameters=dict(DEEPSEEK_YARN)),
    "glm4-moe": Glm4MoeConfig(**QWEN3, **ROUTED, use_qk_norm=True),
    "glm4-moe-unnormalised": Glm4MoeConfig(**QWEN3, **{**ROUTED, "n_group": 1, "topk_group": 1}, norm_topk_prob=False),
}
CUTS = {
    "tp1": (1, 1, None),
    "tp2": (2, 2, None),
    "tp3": (3, 1, None),
    "tp5": (5, 1, None),
    "uneven": (4, 2, [5, 1, 2, 2]),
}
NUM_PREFILL, NUM_DECODE = 40, 32


@pytest.fixture(scope="module", params=CONFIGS)
def tiny(request, tmp_path_factory):
    """(checkpoint, tokens, logits of transformers)"""
    model = random_model(CONFIGS[request.param])
    checkpoint = Checkpoint.open(save(model, tmp_path_factory.mktemp("model")))
    tokens = random_tokens(NUM_PREFILL + NUM_DECODE, 112)
    return checkpoint, tokens, logits_of(model, tokens)


def run(decoder, tokens, chunk_tokens):
    """Logits of all tokens: a prefill in chunks, then one at a time."""
    decoder.chunk_tokens = chunk_tokens
    cache = decoder.new_cache(len(tokens))
    rows = [decoder.forward(tokens[:NUM_PREFILL], cache, all_logits=True)]
    rows += [decoder.forward([t], cache) for t in tokens[NUM_PREFILL:]]
    return torch.cat(rows)


def kl(p, q):
    p, q = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).max().item()


@pytest.mark.parametrize("cut", CUTS)
def test_f32_equals_transformers(tiny, tmp_path, cut):
    checkpoint, tokens, expected = tiny
    tp, parts, weights = CUTS[cut]
    plan = prepare(checkpoint, "tiny", tmp_path, tp=tp, parts=parts, weights=weights, format="f32")
    decoder = load_decoder(checkpoint, LocalFabric(plan, ChunkStore(tmp_path).read))
    for chunk_tokens in (512, 7):
        logits = run(decoder, tokens, chunk_tokens)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
        assert kl(expected, logits) <= 1e-6
    if cut == "uneven":
        assert torch.equal(run(decoder, tokens, 7), logits)  # the same bits from run to run


@pytest.mark.parametrize("format", ["bf16", "e4m3", "fp9"])
def test_rounded_formats_equal_transformers_on_the_rounded_weights(tiny, tmp_path, format):
    checkpoint, tokens, _ = tiny
    plan = prepare(checkpoint, "tiny", tmp_path, tp=3, format=format)
    decoder = load_decoder(checkpoint, LocalFabric(plan, ChunkStore(tmp_path).read))
    expected = logits_of(reference_model(checkpoint, format), tokens)
    logits = run(decoder, tokens, 512)
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=0)
    assert kl(expected, logits) <= 1e-6
