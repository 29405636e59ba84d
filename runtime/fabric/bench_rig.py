"""One duck of one thread on a core of its own, with a layer of random weights, for the fabric's benchmark."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import psutil

from duckfleet.fp9_kernels import ChunkSection, Quantized, Shard, chunk_digest, encode_chunk
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.bench.random_codes import random_codes
from duckfleet.runtime.control import ControlClient, duckd_path
from duckfleet.runtime.planner import ModelShape, cut, fill_digests
from duckfleet.runtime.wire import FleetKeys

from .bench_link import LOOPBACK, BenchLink
from .interface import F32, U32
from .udp import UdpFabric

_READY_S = 20.0


class RandomLayer:
    """Layer 0 of `shape` for one rank, e4m3 with random codes: the plan, its chunks, and routes that wander."""

    def __init__(self, shape: ModelShape, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._ffn = shape.layers[0]
        self.hidden = shape.hidden
        plan = cut(shape, 1, format="e4m3")
        self.chunks = [self._encode(chunk) for chunk in plan.chunks]
        self.plan: ShardPlan = fill_digests(plan, [chunk_digest(c) for c in self.chunks], f"{seed:064x}")

    def _encode(self, chunk: Chunk) -> bytes:
        sections = [
            ChunkSection(
                s.expert,
                s.col0,
                self._matrix(s.num_cols, self.hidden),
                self._matrix(s.num_cols, self.hidden),
                self._matrix(self.hidden, s.num_cols),
            )
            for s in chunk.sections
        ]
        return encode_chunk(0, 0, 0, self.hidden, self._ffn.intermediate, "e4m3", sections)

    def _matrix(self, rows: int, cols: int) -> Quantized:
        scales = np.full((-(-rows // 128), -(-cols // 128)), 1e-4, np.float32)
        return Quantized.from_e4m3(random_codes(self._random, rows, cols), scales)

    def shard(self) -> Shard:
        """The same weights in this process, one thread."""
        shard = Shard(threads=1)
        for chunk in self.chunks:
            shard.add_chunk(chunk)
        return shard

    def inputs(self, num_tokens: int, top_k: int = 8) -> tuple[F32, U32 | None, F32 | None]:
        """Activations, and routes to other experts than the last time (so that weights come from memory)."""
        x = self._random.standard_normal((num_tokens, self.hidden)).astype(np.float32)
        if not self._ffn.num_experts:
            return x, None, None
        ids = np.stack(
            [np.sort(self._random.choice(self._ffn.num_experts, top_k, replace=False)) for _ in range(num_tokens)]
        )
        if self._ffn.shared_intermediate:
            ids = np.concatenate([ids, np.full((num_tokens, 1), self._ffn.num_experts)], axis=1)
        return x, ids.astype(np.uint32), np.full(ids.shape, 0.125, np.float32)


class BenchDuck:
    """A duckd of one thread pinned to `cpu` at its end of a network, holding a layer. A context manager."""

    def __init__(self, layer: RandomLayer, cpu: int, spin_us: int, link: BenchLink = LOOPBACK) -> None:
        self._layer = layer
        self._link = link
        self._directory = tempfile.TemporaryDirectory(prefix="duckfleet-bench-")
        self._keys = FleetKeys.generate()
        self._control_port, self._data_port = _free_port(), _free_port()
        keys = Path(self._directory.name, "keys")
        self._keys.save(keys)
        self._command = [
            *link.duck_prefix,
            str(duckd_path()),
            "--bind",
            link.duck_address,
            "--broadcast",
            link.broadcast,
        ]
        self._command += ["--control-port", str(self._control_port), "--data-port", str(self._data_port)]
        self._command += ["--threads", "1", "--cpus", str(cpu), "--spin-us", str(spin_us), "--log-level", "error"]
        self._command += ["--fleet-key", str(keys / "fleet.pub"), "--enrolment", str(keys / "enrolment.secret")]
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: ControlClient | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            with self._control() as client:
                for chunk, data in zip(self._layer.plan.chunks, self._layer.chunks, strict=True):
                    client.put_chunk(chunk.digest, data)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None
        self._directory.cleanup()

    def cpu_s(self) -> float:
        """Processor time the daemon has taken so far, in seconds."""
        assert self._process is not None
        taken = psutil.Process(self._process.pid).cpu_times()
        return float(taken.user + taken.system)

    def open(self, *, auth: bool, spin_us: int) -> UdpFabric:
        """A session with this duck alone; it ends the one before."""
        entry = RosterEntry(
            rank=0,
            duck="bench",
            address=self._link.duck_address,
            domain="bench",
            control_port=self._control_port,
            data_port=self._data_port,
            ram_bytes=0,
            read_bandwidth_bytes_per_s=0.0,
            num_threads=1,
            evidence_at_s=time.time(),
        )
        domain = RosterDomain("bench", self._link.host_address, self._link.broadcast, self._link.mtu)
        roster = Roster(self._layer.plan.generation, time.time(), (domain,), (entry,))
        plan = self._layer.plan
        return UdpFabric(roster, plan, self._keys, deadline_s=5.0, auth=auth, spin_us=spin_us, control_timeout_s=20.0)

    def compute_us(self) -> float:
        """Time that the duck has computed since its start."""
        if self._watcher is None:
            self._watcher = self._control()
        stats: dict[str, Any] = self._watcher.stats()
        return float(stats["data"]["compute"]["total_us"])

    def _control(self) -> ControlClient:
        deadline = time.monotonic() + _READY_S
        while True:
            try:
                return ControlClient(self._link.duck_address, self._control_port, self._keys, 20.0, name="bench")
            except MachineError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
    return port


def two_cpus() -> tuple[int, int]:
    """The host's core and the duck's. Raises `MachineError` on a machine with one."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        raise MachineError("this benchmark wants two cores: one for the host, one for the duck")
    return cpus[0], cpus[-1]
