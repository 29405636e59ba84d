"""Which experts a token goes to, and with which weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .config import RouterSpec


def route(
    x: torch.Tensor, gate: torch.Tensor, spec: RouterSpec, correction_bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [tokens, hidden], gate [num_experts, hidden], both f32 -> ids int64 and weights f32, each [tokens, top_k].

    Ids ascend within a token. Equal scores are resolved as `torch.topk` does.
    """
    logits = F.linear(x, gate)
    scores = logits.sigmoid() if spec.scores == "sigmoid" else logits.softmax(dim=-1)
    choice = scores if correction_bias is None else scores + correction_bias
    if spec.num_groups > 1:
        choice = _mask_groups(choice, spec)
    ids = choice.topk(spec.top_k, dim=-1, sorted=False).indices.sort(dim=-1).values
    weights = scores.gather(-1, ids)
    if spec.normalise:
        weights = weights / (weights.sum(dim=-1, keepdim=True) + spec.normalise_epsilon)
    return ids, weights * spec.scaling_factor if spec.scaling_factor != 1.0 else weights


def _mask_groups(choice: torch.Tensor, spec: RouterSpec) -> torch.Tensor:
    grouped = choice.view(-1, spec.num_groups, spec.num_experts // spec.num_groups)
    quality = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(dim=-1)
    best = quality.topk(spec.top_k_groups, dim=-1, sorted=False).indices
    eligible = torch.zeros_like(quality, dtype=torch.bool).scatter_(1, best, True)
    return grouped.masked_fill(~eligible[..., None], float("-inf")).view_as(choice)
