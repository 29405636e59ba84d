"""The composition root: the one module of fleet that puts the runtime's parts together, imported lazily inside.

What comes back are plain records, so that the commands know nothing of the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    pass

Progress = Callable[[str, int, int | None], None]
"""(what is being done, done so far, in all or None)."""


def quiet(_what: str, _done: int, _total: int | None) -> None:
    """A `Progress` that shows nothing."""


# -- models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelOnDisk:
    """A model that was pulled."""

    name: str
    source: str
    path: Path
    num_bytes: int
    pulled_at_s: float


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A published model of the catalogue, whether it was pulled or not."""

    name: str
    source: str
    pulled: bool


def pull_model(models_dir: Path, model: str, name: str | None, progress: Progress = quiet) -> ModelOnDisk:
    """Fetch a model by catalogue name or source; one that is here is not fetched again."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).pull(model, name, progress))


def list_models(models_dir: Path) -> list[ModelOnDisk]:
    from duckfleet.runtime.model import ModelStore

    return [_on_disk(stored) for stored in ModelStore(models_dir).list()]


def remove_model(models_dir: Path, model: str) -> ModelOnDisk:
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).remove(model))


def find_model(models_dir: Path, model: str) -> ModelOnDisk:
    """A model that is here. Raises `OperatorError` that says how to get it."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).find(model))


def _on_disk(stored: Any) -> ModelOnDisk:
    return ModelOnDisk(stored.name, stored.source, stored.path, stored.num_bytes, stored.pulled_at_s)
