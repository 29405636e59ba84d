"""The `transformers` implementation of a checkpoint, its FFN weights rounded as the ducks hold them.

What tests and `duckctl eval` compare with: any difference that is left is ours.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from duckfleet.runtime.decoder.tensor_names import ffn_tensors

from .checkpoint import Checkpoint
from .errors import UnsupportedModel
from .quantization import to_format
from .tensors import F32

_FUSED = re.compile(r"^(?P<block>.*\.experts)\.(?P<matrix>gate_up_proj|down_proj)$")


def reference_model(checkpoint: Checkpoint, format: str | None = None) -> Any:
    """A `transformers` causal LM in f32; FFN weights as they come back from `format`, or unrounded where None."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = {k: v for k, v in checkpoint.raw_config.items() if k not in ("model_type", "quantization_config")}
    config = AutoConfig.for_model(checkpoint.raw_config["model_type"], **raw)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    weights = _RoundedWeights(checkpoint, format)
    tied = {"lm_head.weight"} if checkpoint.config.tie_word_embeddings else set()
    with torch.no_grad():
        for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if name in tied or name.endswith("inv_freq"):
                continue
            parameter.copy_(torch.from_numpy(weights.read(name)))
    model.tie_weights()
    return model


class _RoundedWeights:
    def __init__(self, checkpoint: Checkpoint, format: str | None) -> None:
        self._checkpoint, self._format = checkpoint, format
        self._rounded = set(ffn_tensors(checkpoint.config))

    def read(self, name: str) -> F32:
        """By the name of a parameter of `transformers`, which keeps the experts of a layer in one."""
        if name in self._checkpoint.tensors:
            return self._read_one(name)
        fused = _FUSED.match(name)
        if fused is None:
            raise UnsupportedModel(f"transformers has a parameter {name} that the checkpoint does not name")
        matrices = ("gate_proj", "up_proj") if fused["matrix"] == "gate_up_proj" else ("down_proj",)
        experts: list[F32] = []
        while f"{fused['block']}.{len(experts)}.{matrices[0]}.weight" in self._checkpoint.tensors:
            prefix = f"{fused['block']}.{len(experts)}"
            experts.append(np.concatenate([self._read_one(f"{prefix}.{m}.weight") for m in matrices]))
        return np.stack(experts)

    def _read_one(self, name: str) -> F32:
        tensor = self._checkpoint.read(name)
        if self._format is None or name not in self._rounded:
            return np.array(tensor.to_f32())
        return to_format(tensor, self._format).dequantize()
