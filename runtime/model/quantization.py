"""From a stored tensor to one of our formats: without loss where the format can hold it, else rounded."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duckfleet.fp9_kernels import NotFiniteError, Quantized, quantize

from .errors import BadCheckpoint
from .tensors import StoredTensor


def to_format(tensor: StoredTensor, format: str) -> Quantized:
    """The whole matrix in `format`, tiles counted from its own row 0 and column 0.

    Raises `BadCheckpoint` naming tensor, row and column of a weight that is NaN or infinite.
    """
    try:
        if tensor.scale_inv is not None and format in ("e4m3", "fp9"):
            codes = np.asarray(tensor.data, dtype=np.uint8)
            _refuse_nan_codes(codes)
            return Quantized.from_e4m3(codes, tensor.scale_inv).as_format(format)
        if tensor.data.dtype == np.uint16 and format == "bf16":
            return Quantized.from_bf16_bits(np.asarray(tensor.data, dtype=np.uint16))
        return quantize(tensor.to_f32(), format)
    except NotFiniteError as e:
        raise BadCheckpoint(f"{tensor.info.name}, {e}") from e


def stored_format(tensor: StoredTensor) -> str:
    """The one of our formats that holds the tensor as it is stored, without loss."""
    if tensor.scale_inv is not None:
        return "e4m3"
    return "bf16" if tensor.data.dtype == np.uint16 else "f32"


def _refuse_nan_codes(codes: npt.NDArray[np.uint8]) -> None:
    nan = (codes & 0x7F) == 0x7F
    if nan.any():
        row, col = np.argwhere(nan)[0]
        raise NotFiniteError(f"row {row}, column {col}: the e4m3 code is a NaN")
