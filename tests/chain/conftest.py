"""The real model, pulled once into a store that the tests of the chain share."""

import shutil
from pathlib import Path

import pytest

from duckfleet.runtime.model import Checkpoint, ModelStore


@pytest.fixture(scope="session")
def model_store(request: pytest.FixtureRequest) -> ModelStore:
    return ModelStore(Path(request.config.cache.mkdir("duckfleet-models")))


@pytest.fixture(scope="session")
def smollm2_stored(model_store: ModelStore) -> Path:
    """The folder of the store that holds SmolLM2."""
    return model_store.pull("smollm2").folder


@pytest.fixture(scope="session")
def smollm2_checkpoint(model_store: ModelStore) -> Checkpoint:
    stored = model_store.pull("smollm2")
    return Checkpoint.open(stored.path, stored.folder / "derived")


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory, smollm2_stored: Path) -> Path:
    """A state directory in which SmolLM2 was pulled already."""
    state = tmp_path_factory.mktemp("state")
    shutil.copytree(smollm2_stored.parent, state / "models")
    return state
