"""Cuts a model's FFN weights into logical chunks for the ducks. Pure, and free of torch."""

from .check import check, movement
from .cut import DEFAULT_MAX_CHUNK_BYTES, MAX_TP, cut, fill_digests
from .fit import coverage, held_bytes, shortfall
from .plan_json import BadPlan, plan_from_json, plan_to_json
from .replicate import replicate
from .shape import FfnShape, ModelShape, units
from .sizes import chunk_bytes, packed_chunk_bytes, section_bytes

__all__ = [
    "DEFAULT_MAX_CHUNK_BYTES",
    "MAX_TP",
    "BadPlan",
    "FfnShape",
    "ModelShape",
    "check",
    "chunk_bytes",
    "coverage",
    "cut",
    "fill_digests",
    "held_bytes",
    "movement",
    "packed_chunk_bytes",
    "plan_from_json",
    "plan_to_json",
    "replicate",
    "section_bytes",
    "shortfall",
    "units",
]
