"""A GGUF file again, with its matrices in another GGUF type: what a peer reads, of the same model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .errors import BadCheckpoint


def write_q8_0(source: Path, target: Path) -> None:
    """`source` with every matrix as Q8_0, all else as it is; `target` appears only when it is whole.

    Weights that were Q4_1 or the like are unpacked first, so both files hold the same model up to Q8_0's rounding.
    Raises `BadCheckpoint` for a file that is not GGUF.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants

    try:
        reader = GGUFReader(source)
    except (ValueError, OSError, IndexError, KeyError) as e:
        raise BadCheckpoint(f"{source} is not a whole GGUF file: {e}") from e
    q8_0 = GGMLQuantizationType.Q8_0
    part = target.with_name(target.name + ".part")
    writer = GGUFWriter(part, str(reader.fields["general.architecture"].contents()))
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        if kind == GGUFValueType.ARRAY:
            writer.add_key_value(name, field.contents(), kind, field.types[-1])
        else:
            writer.add_key_value(name, field.contents(), kind)
    writer.add_file_type(7)  # "mostly Q8_0"
    for tensor in reader.tensors:
        values: Any = quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(n) for n in reversed(tensor.shape)]
        if len(shape) < 2 or shape[-1] % 32:
            writer.add_tensor(tensor.name, np.ascontiguousarray(values, np.float32).reshape(shape))
        else:
            packed = quants.quantize(np.ascontiguousarray(values, np.float32).reshape(shape), q8_0)
            writer.add_tensor(tensor.name, packed, raw_dtype=q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)
