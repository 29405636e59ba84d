"""The real model of the tests, fetched once and kept in pytest's cache."""

from pathlib import Path

import pytest

from duckfleet.runtime.model import Checkpoint, ModelStore


@pytest.fixture(scope="session")
def smollm2(request) -> Checkpoint:
    store = ModelStore(Path(request.config.cache.mkdir("duckfleet-models")))
    model = store.pull("smollm2")
    return Checkpoint.open(model.path, model.folder / "derived")
