"""Scheduler, sampler and the request queue."""

from duckfleet.runtime.engine.engine import Engine, EngineStats
from duckfleet.runtime.engine.errors import (
    ContextOverflow,
    EngineClosed,
    GenerationCancelled,
    InvalidRequest,
    QueueFull,
    UnusableLogits,
)
from duckfleet.runtime.engine.generation import Generation
from duckfleet.runtime.engine.request import (
    GenerationMetrics,
    GenerationRequest,
    SamplingParams,
    TokenAlternative,
    TokenEvent,
    TokenLogprob,
)
from duckfleet.runtime.engine.token_bytes import TokenBytes, UnknownTokenizer

__all__ = [
    "ContextOverflow",
    "Engine",
    "EngineClosed",
    "EngineStats",
    "Generation",
    "GenerationCancelled",
    "GenerationMetrics",
    "GenerationRequest",
    "InvalidRequest",
    "QueueFull",
    "SamplingParams",
    "TokenAlternative",
    "TokenBytes",
    "TokenEvent",
    "TokenLogprob",
    "UnknownTokenizer",
    "UnusableLogits",
]
