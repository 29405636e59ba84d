"""Every family against `transformers` on the same random weights; the FFN comes from whole matrices here."""

import pytest
import torch
from transformers import DeepseekV3Config, DeepseekV32Config, Glm4MoeConfig, LlamaConfig, Qwen3Config, Qwen3MoeConfig

from duckfleet.runtime.decoder import Decoder
from duckfleet.runtime.model.checkpoint import Checkpoint
from duckfleet.runtime.model.host_weights import CheckpointWeights
from tests.runtime.matrix_fabric import MatrixFabric
from tests.runtime.tiny_models import (
    COMMON,
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

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "original_max_position_embeddings": 64}

CONFIGS = {
    "llama": LlamaConfig(**COMMON),
    "llama-tied-bias": LlamaConfig(**COMMON, tie_word_embeddings=True, attention_bias=True),
    "llama-linear": LlamaConfig(**COMMON, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "llama-dynamic": LlamaConfig(**COMMON, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}),
    "llama-llama3": LlamaConfig(**COMMON, rope_parameters=LLAMA3),
    "llama-yarn": LlamaConfig(**COMMON, rope_parameters=YARN),
    "llama-yarn-mscale": LlamaConfig(
        **COMMON, rope_parameters={**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16, "truncate": False}
    ),
    "qwen3": Qwen3Config(**QWEN3),
    "qwen3-tied": Qwen3Config(**QWEN3, tie_word_embeddings=True),
    "qwen3-bias": Qwen3Config(**QWEN3, attention_bias=True),
    "qwen3-moe": Qwen3MoeConfig(**QWEN3, **MOE, norm_topk_prob=False),
    "qwen3-moe-normalised": Qwen3MoeConfig(**QWEN3, **MOE, norm_topk_prob=True),
    "qwen3-moe-dense-first": Qwen3MoeConfig(**QWEN3, **MOE, mlp_only_layers=[0]),
    "qwen3-moe-every-second": Qwen3MoeConfig(**QWEN3, **MOE, decoder_sparse_step=2),
    "glm4-moe": Glm4MoeConfig(**QWEN3, **ROUTED, use_qk_norm=True, attention_bias=True),
    "glm4-moe-unnormalised": Glm4MoeConfig(**QWEN3, **ROUTED, norm_topk_prob=False),
    "deepseek-v3": DeepseekV3Config(**DEEPSEEK),
    "deepseek-v3-yarn": DeepseekV3Config(**DEEPSEEK, rope_parameters=dict(DEEPSEEK_YARN)),
    "deepseek-v3-yarn-mscales-differ": DeepseekV3Config(
        **DEEPSEEK, rope_parameters={**DEEPSEEK_YARN, "mscale_all_dim": 0.7}
    ),
    "deepseek-v3-whole-queries": DeepseekV3Config(**{**DEEPSEEK, "q_lora_rank": None}),
    "deepseek-v3-halves-bias": DeepseekV3Config(**DEEPSEEK, rope_interleave=False, attention_bias=True),
    "deepseek-v32-short": DeepseekV32Config(**DEEPSEEK, **{**INDEXER, "index_topk": 512}),
    "deepseek-v32": DeepseekV32Config(**DEEPSEEK, **INDEXER, rope_parameters=dict(DEEPSEEK_YARN)),
    "deepseek-v32-unnormalised": DeepseekV32Config(**DEEPSEEK, **INDEXER, norm_topk_prob=False),
}


LATENT = {name for name in CONFIGS if name.startswith("deepseek")}  # attention that is torch's in any case
WAYS = [(name, native) for name in CONFIGS for native in (False, True) if not (native and name in LATENT)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{'native' if way[1] else 'torch'}")
def pair(request, tmp_path):
    """(model of transformers, our decoder)"""
    name, native = request.param
    model = random_model(CONFIGS[name])
    checkpoint = Checkpoint.open(save(model, tmp_path / "model"))
    weights = CheckpointWeights(checkpoint, torch.device("cpu"), threads=2)
    decoder = Decoder(checkpoint.config, weights, MatrixFabric(checkpoint), native=native)
    assert decoder.is_native == native
    return model, decoder


def test_prefill_and_decode(pair):
    model, decoder = pair
    tokens = random_tokens(96, decoder.vocab_size)
    expected = logits_of(model, tokens)
    cache = decoder.new_cache(96)
    torch.testing.assert_close(decoder.forward(tokens[:64], cache, all_logits=True), expected[:64], atol=1e-4, rtol=0)
    for i in range(64, 96):
        row = decoder.forward([tokens[i]], cache)
        torch.testing.assert_close(row, expected[i : i + 1], atol=1e-4, rtol=0)
        assert cache.length == i + 1


def test_chunks_and_rollback_change_nothing(pair):
    model, decoder = pair
    tokens = random_tokens(48, decoder.vocab_size)
    expected = logits_of(model, tokens)
    decoder.chunk_tokens = 7
    cache = decoder.new_cache(64)
    torch.testing.assert_close(decoder.forward(tokens, cache, all_logits=True), expected, atol=1e-4, rtol=0)
    cache.truncate(20)
    torch.testing.assert_close(decoder.forward(tokens[20:], cache), expected[-1:], atol=1e-4, rtol=0)
