"""Some ducks as processes on loopback with random weights, for the benchmark of failover."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from duckfleet.fp9_kernels import ChunkSection, Quantized, chunk_digest, encode_chunk
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.control import ControlClient, duckd_path
from duckfleet.runtime.planner import FfnShape, ModelShape, cut, fill_digests
from duckfleet.runtime.wire import FleetKeys

from .failover import FailoverPolicy
from .udp import UdpFabric

_NETWORK = "127.23.251"
_BROADCAST = "127.255.255.255"
_READY_S = 20.0
SHAPE = ModelShape("random", 1024, (FfnShape(3584),) * 8)


class RandomModel:
    """Dense layers of random e4m3 codes, all of them alike: the plan, and its chunks by digest."""

    def __init__(self, tp: int, parts: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        columns = SHAPE.layers[0].intermediate

        def matrix(rows: int, cols: int) -> Quantized:
            magnitudes = random.integers(0, 0x7F, (rows, cols), dtype=np.uint8)  # 0x7F is the NaN
            signs = random.integers(0, 2, (rows, cols), dtype=np.uint8) << 7
            scales = np.full((-(-rows // 128), -(-cols // 128)), 1e-4, np.float32)
            return Quantized.from_e4m3(np.bitwise_or(magnitudes, signs, dtype=np.uint8), scales)

        gate, up, down = matrix(columns, SHAPE.hidden), matrix(columns, SHAPE.hidden), matrix(SHAPE.hidden, columns)
        plan = cut(SHAPE, tp, parts, format="e4m3")
        contents = []
        for chunk in plan.chunks:
            sections = [
                ChunkSection(
                    s.expert,
                    s.col0,
                    gate.rows(s.col0, s.col0 + s.num_cols),
                    up.rows(s.col0, s.col0 + s.num_cols),
                    down.cols(s.col0, s.col0 + s.num_cols),
                )
                for s in chunk.sections
            ]
            contents.append(encode_chunk(chunk.layer, chunk.slice, chunk.part, SHAPE.hidden, columns, "e4m3", sections))
        self.plan: ShardPlan = fill_digests(plan, [chunk_digest(c) for c in contents], f"{seed:064x}")
        self._chunks = {chunk.digest: data for chunk, data in zip(self.plan.chunks, contents, strict=True)}

    def read(self, chunk: Chunk) -> bytes:
        """A chunk's content."""
        return self._chunks[chunk.digest]


class BenchFleet:
    """Ducks that hold what `plan` gives them; a context manager. The last `num_spares` of its holders are spares."""

    def __init__(self, folder: Path, model: RandomModel, plan: ShardPlan, num_spares: int) -> None:
        folder.mkdir(parents=True)
        self._folder, self._model, self._plan, self._num_spares = folder, model, plan, num_spares
        self._keys = FleetKeys.generate()
        self._keys.save(folder / "keys")
        data_port = _free_port()
        self._entries = tuple(
            RosterEntry(
                rank=rank,
                duck=f"duck{rank}",
                address=f"{_NETWORK}.{101 + rank}",
                domain="bench",
                control_port=_free_port(),
                data_port=data_port,
                ram_bytes=1 << 34,
                read_bandwidth_bytes_per_s=1.0,
                num_threads=1,
                evidence_at_s=0.0,
            )
            for rank in range(plan.tp + num_spares)
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            for entry in self._entries:
                self._processes.append(self._start(entry))
            for entry in self._entries:
                self._place(entry)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End what runs."""
        for process in self._processes:
            process.kill()
            process.wait()

    def kill(self, rank: int) -> None:
        """kill -9; gone when this returns."""
        self._processes[rank].kill()
        self._processes[rank].wait()

    def fabric(self, policy: FailoverPolicy) -> UdpFabric:
        """A session on the ducks that loads lost parts from the model's chunks."""
        tp = self._plan.tp
        domain = RosterDomain("bench", f"{_NETWORK}.1", _BROADCAST, 65536)
        roster = Roster(1, 0.0, (domain,), self._entries[:tp], self._entries[tp:])
        return UdpFabric(
            roster,
            self._plan,
            self._keys,
            deadline_s=30.0,
            control_timeout_s=20.0,
            failover=policy,
            chunk_source=self._model.read,
        )

    def _start(self, entry: RosterEntry) -> subprocess.Popen[bytes]:
        command = [str(duckd_path()), "--bind", entry.address, "--broadcast", _BROADCAST]
        command += ["--control-port", str(entry.control_port), "--data-port", str(entry.data_port)]
        command += ["--threads", "1", "--spin-us", "0"]
        command += ["--fleet-key", str(self._folder / "keys" / "fleet.pub")]
        command += ["--enrolment", str(self._folder / "keys" / "enrolment.secret")]
        with (self._folder / f"{entry.duck}.log").open("wb") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _place(self, entry: RosterEntry) -> None:
        with self._connect(entry) as client:
            for index in self._plan.holders[entry.rank]:
                chunk = self._plan.chunks[index]
                client.put_chunk(chunk.digest, self._model.read(chunk))

    def _connect(self, entry: RosterEntry) -> ControlClient:
        until = time.monotonic() + _READY_S
        while True:
            with contextlib.suppress(MachineError):
                return ControlClient(entry.address, entry.control_port, self._keys, _READY_S, name=entry.duck)
            if time.monotonic() > until:
                raise MachineError(f"{entry.duck} did not start; see {self._folder / entry.duck}.log")
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("0.0.0.0", 0))
        port: int = udp.getsockname()[1]
        return port
