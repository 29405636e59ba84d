"""Models on this host: what was pulled, what is known, and their twins in other formats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet.compose.progress import Progress, quiet


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
    family: str
    source: str
    pulled: bool


def pull_model(models_dir: Path, model: str, name: str | None, progress: Progress = quiet) -> ModelOnDisk:
    """Fetch a model by catalogue name or source; one that is here is not fetched again."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).pull(model, name, progress))


def list_models(models_dir: Path) -> list[ModelOnDisk]:
    from duckfleet.runtime.model import ModelStore

    return [_on_disk(stored) for stored in ModelStore(models_dir).list()]


def damaged_models(models_dir: Path) -> list[str]:
    """What is wrong with each model that `list_models` had to leave out."""
    from duckfleet.runtime.model import ModelStore

    return list(ModelStore(models_dir).damaged())


def remove_model(models_dir: Path, model: str) -> ModelOnDisk:
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).remove(model))


def convert_model(models_dir: Path, model: str, name: str | None, progress: Progress = quiet) -> ModelOnDisk:
    """Make the FP8 twin of a model that is here, under `name` (its own with "-fp8" where None)."""
    from duckfleet.runtime.model import ModelStore

    return _on_disk(ModelStore(models_dir).convert(model, name, progress))


def find_model(models_dir: Path, model: str) -> ModelOnDisk:
    """A model that is here. Raises `OperatorError` that says how to get it."""
    return _on_disk(stored_model(models_dir, model))


def stored_model(models_dir: Path, model: str) -> Any:
    """A model that is here, by its name or by the source that it was pulled from."""
    from duckfleet.runtime.model import ModelStore, UnknownModel

    store = ModelStore(models_dir)
    try:
        return store.find(model)
    except UnknownModel:
        sources = (model, str(Path(model).expanduser().resolve()))
        same = [stored for stored in store.list() if stored.source in sources]
        if len(same) != 1:
            raise
        return same[0]


def _on_disk(stored: Any) -> ModelOnDisk:
    return ModelOnDisk(stored.name, stored.source, stored.path, stored.num_bytes, stored.pulled_at_s)


def known_models(pulled: Iterable[str] = ()) -> list[KnownModel]:
    """The catalogue of published models."""
    from duckfleet.runtime.model import catalogue

    here = set(pulled)
    return [
        KnownModel(entry.name, entry.model_type, entry.source, entry.name in here) for entry in catalogue().values()
    ]


def write_q8_0(models_dir: Path, model: str, target: Path) -> None:
    """A pulled GGUF model with its matrices as Q8_0, for peers that read nothing of ours."""
    from duckfleet.runtime.model.requantise import write_q8_0 as write

    target.parent.mkdir(parents=True, exist_ok=True)
    write(find_model(models_dir, model).path, target)
