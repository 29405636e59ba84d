"""Reading configs: what is refused is refused by name, and what is said in two ways means one thing."""

import pytest

from duckfleet.runtime.decoder import UnsupportedConfig, decoder_config
from tests.runtime.tiny_models import COMMON, QWEN3, ROUTED

LLAMA = {"model_type": "llama", **COMMON}


def rope(config):
    return decoder_config(config).layers[0].attention.rope


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"rope_scaling": {"type": "spiral"}}, "rope type 'spiral' is unknown"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "wobble": 1}}, "has the key 'wobble'"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "beta_fast": 3}}, "has the key 'beta_fast'"),
    ],
)
def test_what_the_decoder_does_not_have_is_refused(changes, message):
    with pytest.raises(UnsupportedConfig, match=message):
        decoder_config({**LLAMA, **changes})


def test_sliding_windows_are_refused():
    with pytest.raises(UnsupportedConfig, match="sliding"):
        decoder_config({"model_type": "qwen3", **QWEN3, "use_sliding_window": True, "max_window_layers": 0})


def test_unknown_router_kinds_are_refused():
    with pytest.raises(UnsupportedConfig, match="scoring_func"):
        decoder_config({"model_type": "glm4_moe", **QWEN3, **ROUTED, "scoring_func": "softmax"})


@pytest.mark.parametrize("value", ["int8", True, "FP8"])
def test_an_unknown_quantisation_of_the_indexer_is_refused(value):
    with pytest.raises(UnsupportedConfig, match="index_quantization"):
        decoder_config({"model_type": "deepseek_v32", "index_quantization": value})


def test_the_indexer_is_quantised_where_the_config_says_so():
    def indexer(**more):
        return decoder_config({"model_type": "deepseek_v32", **more}).layers[0].attention.indexer

    assert not indexer().quantised and not indexer(index_quantization=None).quantised
    assert indexer(index_quantization="fp8").quantised
    with pytest.raises(UnsupportedConfig, match="not 96"):
        indexer(index_quantization="fp8", index_head_dim=96)


@pytest.mark.parametrize("key", ["moe_layer_freq", "topk_method", "scoring_func"])
def test_deepseek_configs_that_mean_another_mixture_are_refused(key):
    with pytest.raises(UnsupportedConfig, match=key):
        decoder_config({"model_type": "deepseek_v32", key: 2})


def test_type_and_rope_type_mean_the_same():
    old = rope({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    older = rope({**LLAMA, "rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})
    new = rope({**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}})
    assert old == older == new
    assert (old.kind, old.factor, old.theta) == ("linear", 2.0, 5e5)


def test_a_null_rope_scaling_is_none():
    assert rope({**LLAMA, "rope_scaling": None}).kind == "default"


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [(0, None, (0,)), (None, 0, (0,)), ([1, 0], 2, (0, 1, 2)), (None, None, ()), (5, [5, 4], (4, 5))],
)
def test_eos_comes_from_both_files(config, generation, expected):
    parsed = decoder_config({**LLAMA, "eos_token_id": config}, {"eos_token_id": generation})
    assert parsed.eos_token_ids == expected


def test_defaults_are_those_of_transformers():
    config = decoder_config({"model_type": "qwen3_moe"})
    assert (config.hidden, config.num_layers, config.layers[0].ffn.router.num_experts) == (2048, 24, 128)


def test_head_dim_may_be_left_out():
    config = decoder_config({k: v for k, v in LLAMA.items() if k != "head_dim"})
    assert config.layers[0].attention.head_dim == 16
