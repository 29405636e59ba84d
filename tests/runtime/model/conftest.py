"""The real model of the tests, fetched once and kept in pytest's cache."""

from functools import cache
from pathlib import Path

import pytest

from duckfleet.runtime.model import Checkpoint, ModelStore


@pytest.fixture(scope="session")
def smollm2(request) -> Checkpoint:
    store = ModelStore(Path(request.config.cache.mkdir("duckfleet-models")))
    model = store.pull("smollm2")
    return Checkpoint.open(model.path, model.folder / "derived")


class InMemory(Checkpoint):
    """A checkpoint whose tensors are unpacked once for all tests."""

    def __init__(self, inner: Checkpoint) -> None:
        super().__init__(inner.path, inner.derived)
        self._inner = inner
        self.read = cache(inner.read)
        self.rows_of = inner.rows_of
        self.digest = cache(inner.digest)

    raw_config = property(lambda self: self._inner.raw_config)
    generation_config = property(lambda self: self._inner.generation_config)

    def find(self, name):
        return self._inner.find(name)

    def read(self, name):
        raise NotImplementedError

    def rows_of(self, name):
        raise NotImplementedError

    def digest(self, name):
        raise NotImplementedError

    def unknown(self, used):
        return self._inner.unknown(used)


@pytest.fixture(scope="session")
def smollm2_in_memory(smollm2) -> Checkpoint:
    """About 540 MB."""
    return InMemory(smollm2)
