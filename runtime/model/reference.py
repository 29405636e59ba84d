"""The `transformers` implementation of a checkpoint, its FFN weights rounded as the ducks hold them.

What tests and `duckctl eval` compare with: any difference that is left is ours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from duckfleet.runtime.decoder.tensor_names import ffn_tensors, layer_prefix

from .checkpoint import Checkpoint
from .quantization import to_format
from .tensors import F32


def reference_model(checkpoint: Checkpoint, format: str | None = None) -> Any:
    """A `transformers` causal LM in f32; FFN weights as they come back from `format`, or unrounded where None.

    The whole model is in memory, unpacked.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = {k: v for k, v in checkpoint.raw_config.items() if k not in ("model_type", "quantization_config")}
    config = AutoConfig.for_model(checkpoint.raw_config["model_type"], **raw)
    decoder = checkpoint.config
    mtp = tuple(layer_prefix(i) for i in range(decoder.num_layers, len(decoder.all_layers)))  # not in transformers
    rounded = set(ffn_tensors(decoder)) if format else set()
    weights = {
        n: torch.from_numpy(_read(checkpoint, n, format if n in rounded else None))
        for n in checkpoint.tensors
        if not n.startswith(mtp)
    }
    architecture = AutoModelForCausalLM._model_mapping[type(config)]
    model, report = architecture.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    wrong = {kind: names for kind, names in report.items() if names}
    assert not wrong, f"transformers did not take the weights as they are: {wrong}"
    return model.eval()


def _read(checkpoint: Checkpoint, name: str, format: str | None) -> F32:
    tensor = checkpoint.read(name)
    return np.array(tensor.to_f32()) if format is None else to_format(tensor, format).dequantize()
