"""A decoder of a checkpoint, over a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checkpoint import Checkpoint

if TYPE_CHECKING:
    from duckfleet.runtime.decoder import Decoder
    from duckfleet.runtime.fabric.interface import Fabric


def load_decoder(
    checkpoint: Checkpoint, fabric: Fabric, *, device: str = "cpu", num_threads: int | None = None
) -> Decoder:
    """Reads what stays on the host. `num_threads` is torch's, for the whole process; None leaves it.

    Raises `BadCheckpoint`, `UnsupportedConfig`.
    """
    import torch

    from duckfleet.runtime.decoder import Decoder

    from .host_weights import CheckpointWeights

    if num_threads is not None:
        torch.set_num_threads(num_threads)
    checkpoint.tensors  # noqa: B018 - the whole checkpoint is checked before a part of it is used
    return Decoder(checkpoint.config, CheckpointWeights(checkpoint, torch.device(device)), fabric)
