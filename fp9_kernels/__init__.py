"""Number formats, packing and the FFN kernels."""

from duckfleet.fp9_kernels.chunks import ChunkSection, chunk_digest, encode_chunk
from duckfleet.fp9_kernels.packed import (
    PackedMatrix,
    Shard,
    cpu_features,
    implementations,
    selected_implementation,
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
    "cpu_features",
    "encode_chunk",
    "implementations",
    "quantize",
    "selected_implementation",
]
