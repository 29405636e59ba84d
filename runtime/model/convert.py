"""Makes an FP8 checkpoint in the published layout out of any checkpoint that we read.

FFN and attention matrices become e4m3 codes with `<name>_scale_inv`, one f32 a 128x128 block; everything else keeps
its type. A tensor is in memory at a time.
"""

from __future__ import annotations

import json
import math
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .checkpoint import Checkpoint
from .errors import NoSpace
from .progress import Progress, silent
from .quantization import to_format
from .tensors import SCALE_BLOCK, StoredTensor

MAX_SHARD_BYTES = 4 << 30
QUANTIZATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [SCALE_BLOCK, SCALE_BLOCK],
}
# Families whose published scales are powers of two; the config of their checkpoints says so.
_POWER_OF_TWO_SCALES = {"deepseek_v32": "ue8m0"}
_E4M3_MAX = 448.0
_ROUNDED = ("_proj.weight", "_proj_with_mqa.weight", "indexer.wq_b.weight", "indexer.wk.weight")
_KEPT = ("indexer.weights_proj.weight", "eh_proj.weight")


@dataclass(frozen=True, slots=True)
class _Planned:
    """One tensor of the new checkpoint, before it is made."""

    name: str
    source: str  # name in the old one
    dtype: str  # safetensors' own name
    shape: tuple[int, ...]
    num_bytes: int


def convert_to_fp8(
    checkpoint: Checkpoint, folder: Path, progress: Progress = silent, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write the checkpoint's FP8 twin into `folder` (made when absent): config, tokenizer, index and shards.

    Raises `BadCheckpoint`, `NoSpace`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    planned = [p for name in checkpoint.tensors for p in _plan(checkpoint, name)]
    total = sum(p.num_bytes for p in planned)
    _require_space(folder, total)
    shards = list(_shards(planned, max_shard_bytes))
    weight_map: dict[str, str] = {}
    done = 0
    for i, shard in enumerate(shards, start=1):
        file = folder / (f"model-{i:05d}-of-{len(shards):05d}.safetensors" if len(shards) > 1 else "model.safetensors")
        with file.open("wb") as out:
            out.write(_header(shard))
            made: dict[str, tuple[npt.NDArray[Any], npt.NDArray[Any] | None]] = {}
            for p in shard:
                if p.source not in made:
                    made = {p.source: _make(checkpoint, p)}
                codes, scales = made[p.source]
                out.write(np.ascontiguousarray(codes if p.name == p.source else scales).tobytes())
                weight_map[p.name] = file.name
                done += p.num_bytes
                progress("convert", done, total)
    if len(shards) > 1:
        _write_json(
            folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map}
        )
    _write_config(checkpoint, folder)


def is_rounded(name: str) -> bool:
    """Projections of attention and FFN; router, norms, embedding, head and the indexer's weights stay as they are."""
    return name.endswith(_ROUNDED) and not name.endswith(_KEPT)


def _plan(checkpoint: Checkpoint, name: str) -> Iterator[_Planned]:
    info = checkpoint.tensors[name]
    count = math.prod(info.shape)
    if is_rounded(name):
        blocks = tuple(-(-n // SCALE_BLOCK) for n in info.shape)
        yield _Planned(name, name, "F8_E4M3", info.shape, count)
        yield _Planned(f"{name}_scale_inv", name, "F32", blocks, 4 * math.prod(blocks))
    else:
        dtype = {"bf16": "BF16", "f16": "F16"}.get(info.stored, "F32")
        if checkpoint.path.is_file():
            dtype = "F32"  # a GGUF file's tensors are given as f32
        yield _Planned(name, name, dtype, info.shape, count * (4 if dtype == "F32" else 2))


def _make(checkpoint: Checkpoint, p: _Planned) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    stored: StoredTensor = checkpoint.read(p.source)
    if p.dtype == "F8_E4M3" or p.name != p.source:
        if checkpoint.config.model_type in _POWER_OF_TWO_SCALES and stored.scale_inv is None:
            return _round_with_powers_of_two(stored)
        q = to_format(stored, "e4m3")
        return q.codes, q.scales
    return (stored.to_f32() if p.dtype == "F32" else stored.data), None


def _round_with_powers_of_two(stored: StoredTensor) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """e4m3 codes u8 [N, K] and a scale a tile, the least power of two that its greatest weight fits under."""
    import torch

    to_format(stored, "f32")  # refuses what is not finite, by name
    weights = torch.from_numpy(np.array(stored.to_f32()))
    rows, cols = weights.shape
    tiles = -(-rows // SCALE_BLOCK), -(-cols // SCALE_BLOCK)
    padded = torch.nn.functional.pad(weights, (0, tiles[1] * SCALE_BLOCK - cols, 0, tiles[0] * SCALE_BLOCK - rows))
    amax = padded.view(tiles[0], SCALE_BLOCK, tiles[1], SCALE_BLOCK).abs().amax(dim=(1, 3))
    scales = torch.where(amax > 0, torch.exp2(torch.ceil(torch.log2(amax / _E4M3_MAX))), 1.0)
    wide = scales.repeat_interleave(SCALE_BLOCK, 0)[:rows].repeat_interleave(SCALE_BLOCK, 1)[:, :cols]
    codes = (weights / wide).clamp(-_E4M3_MAX, _E4M3_MAX).to(torch.float8_e4m3fn)
    return codes.view(torch.uint8).numpy(), scales.numpy()


def _shards(planned: Sequence[_Planned], max_bytes: int) -> Iterator[list[_Planned]]:
    """A matrix and its scales stay together."""
    shard: list[_Planned] = []
    for p in planned:
        full = sum(q.num_bytes for q in shard) + p.num_bytes > max_bytes
        if shard and full and p.name == p.source:
            yield shard
            shard = []
        shard.append(p)
    yield shard


def _header(shard: Sequence[_Planned]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for p in shard:
        entries[p.name] = {"dtype": p.dtype, "shape": list(p.shape), "data_offsets": [offset, offset + p.num_bytes]}
        offset += p.num_bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _write_config(checkpoint: Checkpoint, folder: Path) -> None:
    from .tokenizer import load_tokenizer

    scale_format = _POWER_OF_TWO_SCALES.get(checkpoint.config.model_type)
    quantization = {**QUANTIZATION, **({"scale_fmt": scale_format} if scale_format else {})}
    _write_json(folder / "config.json", {**checkpoint.raw_config, "quantization_config": quantization})
    if checkpoint.generation_config:
        _write_json(folder / "generation_config.json", dict(checkpoint.generation_config))
    load_tokenizer(checkpoint).save_pretrained(folder)


def _write_json(file: Path, data: dict[str, Any]) -> None:
    file.write_text(json.dumps(data, indent=2), encoding="utf-8")


def _require_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        raise NoSpace(f"{folder} has {free / 2**30:.2f} GiB free, the FP8 checkpoint needs {num_bytes / 2**30:.2f} GiB")
