"""A folder with config.json and one or several safetensors files, weights in f32, f16, bf16 or FP8."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from duckfleet.runtime.decoder.tensor_names import MTP_COPIES, layer_prefix

from .checkpoint import Checkpoint, RowReader, bytes_digest
from .errors import BadCheckpoint, UnsupportedModel
from .safetensors_file import Region, read_header
from .tensors import F32, SCALE_BLOCK, StoredTensor, TensorInfo, dequantise_e4m3

_STORED = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F8_E4M3": "e4m3"}
_SCALE = "_scale_inv"
# Written by some exporters, computed here.
_IGNORED = re.compile(r"\.rotary_emb\.inv_freq$")
_EXPERT = re.compile(r"^(?P<block>.*\.experts)\.(?P<expert>\d+)\.(?P<matrix>gate|up|down)_proj\.weight$")


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor, or one expert's matrix of a fused one ([experts, rows, cols]; `gate_up_proj` holds gate, then up)."""

    physical: str
    region: Region
    scale: Region | None = None
    expert: int | None = None
    half: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.region.shape if self.expert is None else self.region.shape[1:]
        return shape if self.half is None else (shape[0] // 2, *shape[1:])

    def read(self) -> np.ndarray[Any, Any]:
        data = self.region.read()
        if self.expert is not None:
            data = data[self.expert]
        if self.half is not None:
            rows = data.shape[0] // 2
            data = data[self.half * rows : (self.half + 1) * rows]
        return data


class SafetensorsCheckpoint(Checkpoint):
    """See `Checkpoint`. Sharded files are found through the index, or by their suffix where there is none."""

    def __init__(self, path: Path, derived: Path | None = None) -> None:
        super().__init__(path, derived)
        self._config = _read_json(path / "config.json", required=True)
        self._generation_config = _read_json(path / "generation_config.json", required=False)
        self._check_quantization()
        self._regions = self._read_headers()

    @property
    def raw_config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._generation_config

    def find(self, name: str) -> TensorInfo | None:
        view = self._view(name)
        if view is None:
            return None
        size = view.region.num_bytes // (view.region.shape[0] if view.expert is not None else 1)
        size //= 2 if view.half is not None else 1
        size += view.scale.num_bytes if view.scale is not None else 0
        return TensorInfo(name, view.shape, _STORED[view.region.dtype], size)

    def read(self, name: str) -> StoredTensor:
        view, info = self._view(name), self.find(name)
        if view is None or info is None:
            raise BadCheckpoint(f"{self.path} has no tensor {name}")
        scale = None
        if view.scale is not None:
            raw = StoredTensor(TensorInfo("", view.scale.shape, _STORED[view.scale.dtype], 0), view.scale.read())
            scale = raw.to_f32()
        return StoredTensor(info, view.read(), scale)

    def rows_of(self, name: str) -> RowReader:
        whole = self.read(name)

        def read(rows: Sequence[int]) -> F32:
            if whole.scale_inv is None:
                return StoredTensor(whole.info, whole.data[list(rows)]).to_f32()
            one = [dequantise_e4m3(whole.data[r : r + 1], whole.scale_inv[r // SCALE_BLOCK :]) for r in rows]
            return np.concatenate(one)

        return read

    def digest(self, name: str) -> str:
        stored = self.read(name)
        pieces = [np.ascontiguousarray(stored.data)]
        if stored.scale_inv is not None:
            pieces.append(np.ascontiguousarray(stored.scale_inv))
        return bytes_digest(*(p.view(np.uint8).reshape(-1).data for p in pieces))

    def unknown(self, used: set[str]) -> list[str]:
        known = {v.physical for n in used if (v := self._view(n)) is not None}
        known |= {name + _SCALE for name in known}
        if self.config.tie_word_embeddings:
            known.add("lm_head.weight")
        mtp = range(self.config.num_layers, len(self.config.all_layers))
        known |= {layer_prefix(i) + copy for i in mtp for copy in MTP_COPIES}
        return sorted(n for n in self._regions if n not in known and not _IGNORED.search(n))

    def _view(self, name: str) -> _View | None:
        region = self._regions.get(name)
        if region is not None:
            return self._checked(_View(name, region, self._regions.get(name + _SCALE)))
        match = _EXPERT.match(name)
        if match is None:
            return None
        matrix = match["matrix"]
        fused = f"{match['block']}.{'down_proj' if matrix == 'down' else 'gate_up_proj'}"
        region = self._regions.get(fused)
        if region is None or len(region.shape) != 3 or int(match["expert"]) >= region.shape[0]:
            return None
        half = None if matrix == "down" else ("gate", "up").index(matrix)
        return self._checked(_View(fused, region, None, int(match["expert"]), half))

    def _checked(self, view: _View) -> _View:
        if view.region.dtype not in _STORED:
            raise BadCheckpoint(f"{self.path}: {view.physical} is {view.region.dtype}, which is no type of a weight")
        if view.region.dtype == "F8_E4M3":
            shape = view.region.shape
            if view.scale is None:
                raise BadCheckpoint(f"{self.path}: {view.physical} is FP8 but has no {view.physical}{_SCALE}")
            blocks = tuple(-(-n // SCALE_BLOCK) for n in shape)
            if len(shape) != 2 or view.scale.shape != blocks:
                raise BadCheckpoint(
                    f"{self.path}: {view.physical}{_SCALE} is {list(view.scale.shape)}, "
                    f"not {list(blocks)} (blocks of 128x128)"
                )
        return view

    def _check_quantization(self) -> None:
        quantization = self._config.get("quantization_config")
        if not quantization:
            return
        method, block = quantization.get("quant_method"), quantization.get("weight_block_size")
        fmt = quantization.get("fmt", "e4m3")
        if method != "fp8" or list(block or ()) != [SCALE_BLOCK, SCALE_BLOCK] or fmt != "e4m3":
            raise UnsupportedModel(
                f"{self.path / 'config.json'}: quantization_config with quant_method {method!r}, "
                f"weight_block_size {block}, fmt {fmt!r} is not supported; 'fp8' with [128, 128] and 'e4m3' is"
            )

    def _read_headers(self) -> dict[str, Region]:
        index_file = self.path / "model.safetensors.index.json"
        if not index_file.is_file():
            regions: dict[str, Region] = {}
            for file in sorted(self.path.glob("*.safetensors")):
                regions.update(read_header(file))
            if not regions:
                raise BadCheckpoint(f"{self.path} holds no safetensors files")
            return regions
        try:
            weight_map = dict(_read_json(index_file, required=True)["weight_map"])
        except (KeyError, TypeError, ValueError) as e:
            raise BadCheckpoint(f"{index_file} has no weight_map") from e
        files = sorted({str(f) for f in weight_map.values()})
        absent = [f for f in files if Path(f).name != f or not (self.path / f).is_file()]
        if absent:
            raise BadCheckpoint(
                f"{self.path} lacks {len(absent)} of {len(files)} files of its index: {', '.join(absent[:8])}"
            )
        headers = {f: read_header(self.path / f) for f in files}
        lost = [n for n, f in weight_map.items() if n not in headers[f]]
        if lost:
            raise BadCheckpoint(f"{self.path}: tensors of the index that their files lack: {', '.join(lost[:8])}")
        return {n: r for header in headers.values() for n, r in header.items()}


def _read_json(file: Path, *, required: bool) -> dict[str, Any]:
    if not file.is_file():
        if required:
            raise BadCheckpoint(f"{file} does not exist")
        return {}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as e:
        raise BadCheckpoint(f"{file} cannot be read as JSON: {e}") from e
    if not isinstance(data, dict):
        raise BadCheckpoint(f"{file} does not hold a JSON object")
    return data
