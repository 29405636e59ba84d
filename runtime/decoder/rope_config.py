"""Reads the RoPE part of a config, refusing by name what it does not know.

`rope_scaling` (older checkpoints, with `type` or `rope_type`, `rope_theta` beside it) and `rope_parameters`
(transformers 5, `rope_theta` inside) say the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import RopeSpec
from .errors import UnsupportedConfig

_COMMON = {"type", "rope_type", "rope_theta", "partial_rotary_factor"}
_KEYS: dict[str, tuple[set[str], set[str]]] = {  # kind -> required, optional
    "default": (set(), set()),
    "linear": ({"factor"}, set()),
    "dynamic": ({"factor"}, set()),
    "yarn": (
        {"factor"},
        {
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        },
    ),
    "llama3": ({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}, set()),
}


def rope_spec(config: Mapping[str, Any], head_dim: int, default_partial: float = 1.0) -> RopeSpec:
    """The RoPE of a head of `head_dim` dimensions. Raises `UnsupportedConfig` naming the key."""
    scaling = dict(config.get("rope_scaling") or {})
    scaling.update(config.get("rope_parameters") or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind not in _KEYS:
        raise UnsupportedConfig(f"rope type {kind!r} is unknown; known are {', '.join(_KEYS)}")
    required, optional = _KEYS[kind]
    present = {k for k, v in scaling.items() if v is not None} - _COMMON
    if kind == "default":  # harmless leftovers of a scaling that was switched off
        present -= {"factor", "original_max_position_embeddings"}
    for key in sorted(present - required - optional):
        raise UnsupportedConfig(f"rope_scaling of type {kind!r} has the key {key!r}, which the decoder does not know")
    for key in sorted(required - present):
        raise UnsupportedConfig(f"rope_scaling of type {kind!r} lacks {key!r}")
    partial = scaling.get("partial_rotary_factor") or config.get("partial_rotary_factor") or default_partial
    max_positions = int(config.get("max_position_embeddings") or 0)
    original = scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    original = int(original or max_positions)
    attention_factor = scaling.get("attention_factor")
    return RopeSpec(
        dim=int(head_dim * partial),
        theta=float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0),
        kind=kind,
        factor=float(scaling.get("factor") or 1.0),
        original_max_positions=original,
        attention_factor=None if attention_factor is None else float(attention_factor),
        beta_fast=float(scaling.get("beta_fast") or 32.0),
        beta_slow=float(scaling.get("beta_slow") or 1.0),
        mscale=float(scaling.get("mscale") or 0.0),
        mscale_all_dim=float(scaling.get("mscale_all_dim") or 0.0),
        truncate=bool(scaling.get("truncate", True)),
        low_freq_factor=float(scaling.get("low_freq_factor") or 1.0),
        high_freq_factor=float(scaling.get("high_freq_factor") or 4.0),
    )
