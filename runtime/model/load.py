"""A decoder of a checkpoint, over a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from duckfleet.runtime.decoder import Decoder
    from duckfleet.runtime.fabric.interface import Fabric


def load_decoder(
    checkpoint: Checkpoint,
    fabric: Fabric,
    *,
    device: str = "cpu",
    host_format: str | None = None,
    num_threads: int | None = None,
) -> Decoder:
    """Reads what stays on the host: its matrices as they are stored, or rounded to `host_format`.

    `num_threads` is for the host's own arithmetic, torch's (of the whole process) included; None leaves torch as it is.
    Raises `BadCheckpoint`, `UnsupportedConfig`.
    """
    import torch

    from duckfleet.runtime.decoder import Decoder

    from .host_weights import CheckpointWeights

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    checkpoint.tensors  # noqa: B018 - the whole checkpoint is checked before a part of it is used
    weights = CheckpointWeights(checkpoint, torch.device(device), host_format, num_threads or torch.get_num_threads())
    return Decoder(checkpoint.config, weights, fabric)
