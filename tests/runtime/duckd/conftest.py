"""A duck with a small model, served to a host in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from duckfleet.fp9_kernels import chunk_digest
from duckfleet.runtime.control import ControlClient
from duckfleet.runtime.wire import WHOLE_SLICE, FleetKeys
from tests.runtime.duckd.data_client import F32, DataClient
from tests.runtime.duckd.duck_process import DATA_PORT, DuckProcess, random_address
from tests.runtime.duckd.small_model import Oracle, SmallModel


@dataclass
class Served:
    """A keyed duck with an assigned model and a configured session."""

    duck: DuckProcess
    model: SmallModel
    chunks: list[bytes]
    oracle: Oracle
    host: DataClient
    step: int = 0

    def x(self, num_tokens: int = 1) -> F32:
        return np.random.default_rng(self.step).standard_normal((num_tokens, self.model.hidden), np.float32)

    def next_step(self) -> int:
        self.step += 1
        return self.step

    def assert_good(self) -> None:
        """The next good request gets the right bits."""
        x = self.x(2)
        step = self.next_step()
        self.host.send(self.host.fragments(step, 0, x))
        reply = self.host.reply(step, self.model.rank, WHOLE_SLICE)
        assert np.array_equal(reply, self.oracle.whole(0, self.model.rank, x))

    def drops(self) -> dict[str, int]:
        with self.duck.control() as control:
            drops: dict[str, int] = control.stats()["data"]["drops"]
        return drops

    def data_stats(self) -> dict[str, int]:
        with self.duck.control() as control:
            data: dict[str, int] = control.stats()["data"]
        return data


def place(control: ControlClient, model: SmallModel, chunks: list[bytes]) -> None:
    for chunk in chunks:
        control.put_chunk(chunk_digest(chunk), chunk)
    control.assign(model.assignment(chunks))


def serve(duck: DuckProcess, model: SmallModel | None = None, **host_options: object) -> Served:
    """Place a model on a running duck and configure a session."""
    model = model or SmallModel()
    chunks = model.chunks()
    host = DataClient((duck.address, DATA_PORT), random_address(), model.assignment(chunks), **host_options)  # type: ignore[arg-type]
    with duck.control() as control:
        place(control, model, chunks)
        control.configure(host.session_config())
    return Served(duck, model, chunks, Oracle(chunks), host)


@pytest.fixture
def keyed_duck(tmp_path: Path) -> Iterator[DuckProcess]:
    with DuckProcess(tmp_path / "duck", FleetKeys.generate()) as duck:
        yield duck


@pytest.fixture
def open_duck(tmp_path: Path) -> Iterator[DuckProcess]:
    with DuckProcess(tmp_path / "duck") as duck:
        yield duck


@pytest.fixture
def served(keyed_duck: DuckProcess) -> Iterator[Served]:
    one = serve(keyed_duck)
    yield one
    one.host.close()
