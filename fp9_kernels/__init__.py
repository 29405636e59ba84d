"""Number formats, packing and the FFN kernels."""

from duckfleet.fp9_kernels.chunks import ChunkSection, chunk_digest, chunk_header, encode_chunk, encode_section
from duckfleet.fp9_kernels.packed import (
    PackedMatrix,
    Shard,
    cpu_features,
    implementations,
    selected_implementation,
    tune_prefetch,
)
from duckfleet.fp9_kernels.quantized import FORMATS, NotFiniteError, Quantized, quantize

__all__ = [
    "FORMATS",
    "ChunkSection",
    "NotFiniteError",
    "PackedMatrix",
    "Quantized",
    "Shard",
    "chunk_digest",
    "chunk_header",
    "cpu_features",
    "encode_chunk",
    "encode_section",
    "implementations",
    "quantize",
    "selected_implementation",
    "tune_prefetch",
]
