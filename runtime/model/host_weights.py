"""The tensors of a checkpoint that stay on the host, as the decoder takes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from duckfleet.fp9_kernels import PackedMatrix
from duckfleet.runtime.decoder.linear import HostLinear, PackedLinear, TorchLinear

from .checkpoint import Checkpoint, RowReader
from .quantization import stored_format, to_format
from .tensors import StoredTensor


class CheckpointWeights:
    """Implements `duckfleet.runtime.decoder.weights.HostWeights`.

    On the CPU matrices are packed for the ducks' kernels in the format they are stored in (FP8 stays FP8), or rounded
    to `format` where one is given.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, format: str | None = None, threads: int = 1
    ) -> None:
        self._checkpoint, self._format, self._threads = checkpoint, format, threads
        self.device = device

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(self._checkpoint.read(name).to_f32())).to(self.device)

    def linear(self, *names: str, bias: bool = False) -> HostLinear:
        stored = [self._checkpoint.read(f"{n}.weight") for n in names]
        added = torch.cat([self.tensor(f"{n}.bias") for n in names]) if bias else None
        if self.device.type == "cpu":
            packed = [PackedMatrix.pack(to_format(t, self._format or stored_format(t))) for t in stored]
            return PackedLinear(packed, added, self._threads)
        if len(stored) == 1:
            return self._torch(stored[0], added)
        rows = [to_format(t, self._format).dequantize() if self._format else np.array(t.to_f32()) for t in stored]
        return TorchLinear(torch.from_numpy(np.concatenate(rows)).to(self.device), added)

    def matrix(self, name: str) -> TorchLinear:
        return self._torch(self._checkpoint.read(f"{name}.weight"), None)

    def _torch(self, stored: StoredTensor, bias: torch.Tensor | None) -> TorchLinear:
        """Codes stay codes where torch has the type."""
        q = to_format(stored, self._format or stored_format(stored))
        codes = torch.from_numpy(np.array(q.codes))
        if q.format == "e4m3":
            scales = torch.from_numpy(np.array(q.scales)).to(self.device)
            return TorchLinear(codes.view(torch.float8_e4m3fn).to(self.device), bias, scales)
        if q.format == "bf16":
            return TorchLinear(codes.view(torch.bfloat16).to(self.device), bias)
        return TorchLinear(torch.from_numpy(np.array(q.dequantize())).to(self.device), bias)

    def embedding(self, name: str) -> StoredEmbedding:
        return StoredEmbedding(self._checkpoint.rows_of(name), self.device)


_KEPT_ROWS_BYTES = 32 << 20


class StoredEmbedding:
    """The table stays in the checkpoint's file, and so in the page cache; only rows that are used are read.

    Rows that were asked for one by one are kept, to a bound: a text's tokens come again, and unpacking a row takes as
    long as a layer.
    """

    def __init__(self, rows: RowReader, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self._kept: dict[int, torch.Tensor] = {}

    def __call__(self, tokens: Sequence[int]) -> torch.Tensor:
        if len(tokens) != 1:
            return torch.from_numpy(self._rows(tokens)).to(self._device)
        row = self._kept.get(tokens[0])
        if row is None:
            row = torch.from_numpy(self._rows(tokens)).to(self._device)
            if (len(self._kept) + 1) * row.numel() * row.element_size() > _KEPT_ROWS_BYTES:
                self._kept.clear()
            self._kept[tokens[0]] = row
        return row.clone()
