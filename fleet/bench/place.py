"""`duckctl bench place`: bytes a second that a placement moves onto 4 process ducks, all at once, keys and all.

The peer is a plain TCP copy of the same files in the same run: 4 sinks, each a process that takes its duck's share,
digests it (BLAKE2b-256) and keeps it in memory, as a duck does; no encryption, no packing. They take turns, and the
median of the rounds counts.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.lab import processes
from duckfleet.fleet.lab.plan import plan_lab
from duckfleet.fleet.placing import place_all
from duckfleet.fleet.reach import connect, on_all
from duckfleet.fleet.trust import make_keys
from duckfleet.fleet.wake import Waker
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.plan import Chunk, ShardPlan
from duckfleet.runtime.control import duckd_path

NUM_DUCKS = 4
_PIECE_BYTES = 1 << 20


def rows(mib: int = 512, rounds: int = 3) -> Iterator[Mapping[str, Any]]:
    """Row `throughput/4ducks`: MB/s of all ducks together, as a ratio to the plain copy."""
    with tempfile.TemporaryDirectory(prefix="duckfleet-bench-", dir=_memory_folder()) as folder:
        fleet = FleetContext(Path(folder))
        make_keys(fleet.keys_dir)
        plan = _make_chunks(fleet.chunks_dir, mib << 20)
        options = processes.DaemonOptions(
            duckd_path(), 1, fleet_key=fleet.keys_dir / "fleet.pub", enrolment=fleet.keys_dir / "enrolment.secret"
        )
        lab = processes.find_free_ports(plan_lab(processes.new_lab_id(), NUM_DUCKS))
        processes.lab_up(fleet.lab_dir, lab, options)
        try:
            Waker(fleet.site, fleet.known_store, fleet.keys).wake(fleet.site.ducks, wait=True)
            ours, plain = [], []
            for _ in range(rounds):
                plain.append(_plain_copy(plan, fleet.chunks_dir))
                ours.append(_placement(fleet, plan))
        finally:
            processes.lab_down(fleet.lab_dir)
    moved = sum(chunk.num_bytes for chunk in plan.chunks)
    yield {
        "name": f"throughput/{NUM_DUCKS}ducks",
        "value": moved / statistics.median(ours) / 1e6,
        "unit": "MB/s",
        "ratio": statistics.median(plain) / statistics.median(ours),
        "against": "plain TCP into 4 processes that digest and keep the bytes, same run",
    }


def _memory_folder() -> str | None:
    """Chunks and stores lie in memory where there is a tmpfs, so that no disk is measured."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _make_chunks(folder: Path, num_bytes: int) -> ShardPlan:
    """Chunks of the size that a large model is cut into, with digests, 4 slices of them."""
    from duckfleet.fleet import compose

    folder.mkdir(parents=True)
    return compose.random_chunks(folder, NUM_DUCKS, num_bytes)


def _placement(fleet: FleetContext, plan: ShardPlan) -> float:
    """Seconds; the ducks are empty before and after."""
    ducks = fleet.site.ducks
    began = time.perf_counter()
    results = place_all(fleet.site, fleet.keys, plan, ducks, fleet.chunks_dir)
    took_s = time.perf_counter() - began
    lacking = [result.error for result in results if result.error or result.moved_bytes != result.total_bytes]
    if lacking:
        raise MachineError(f"a duck did not get its share: {lacking[0] or 'it had part of it'}")

    def drop(duck: Any) -> None:
        with connect(fleet.site, duck, fleet.keys) as client:
            for index in plan.holders[ducks.index(duck)]:
                client.drop_chunk(plan.chunks[index].digest)

    for _duck, failed in on_all(ducks, drop):
        if failed is not None:
            raise failed
    return took_s


def _plain_copy(plan: ShardPlan, folder: Path) -> float:
    """Seconds until 4 processes have digested and kept the same bytes."""
    context = multiprocessing.get_context("spawn")
    shares = [[plan.chunks[index] for index in held] for held in plan.holders]
    ports: multiprocessing.SimpleQueue[tuple[int, int]] = context.SimpleQueue()
    sinks = [
        context.Process(target=_sink, args=(place, [chunk.num_bytes for chunk in share], ports), daemon=True)
        for place, share in enumerate(shares)
    ]
    for sink in sinks:
        sink.start()
    port_of = dict(ports.get() for _ in sinks)
    senders = [
        threading.Thread(target=_send, args=(port_of[place], share, folder)) for place, share in enumerate(shares)
    ]
    began = time.perf_counter()
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    took_s = time.perf_counter() - began
    for sink in sinks:
        sink.join()
        if sink.exitcode:
            raise MachineError(f"the plain copy's sink ended with {sink.exitcode}")
    return took_s


def _send(port: int, share: Sequence[Chunk], folder: Path) -> None:
    """One file after another; each is digested at the other end before the next is sent, as chunks are."""
    with socket.create_connection(("127.0.0.1", port)) as stream:
        for chunk in share:
            with (folder / chunk.digest).open("rb") as file:
                stream.sendfile(file)
            if stream.recv(32) != bytes.fromhex(chunk.digest):
                raise MachineError("the plain copy spoilt a chunk")


def _sink(place: int, sizes: Sequence[int], ports: multiprocessing.SimpleQueue[tuple[int, int]]) -> None:
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ports.put((place, listener.getsockname()[1]))
        stream, _ = listener.accept()
        with stream:
            for size in sizes:
                content = memoryview(bytearray(size))
                digest = hashlib.blake2b(digest_size=32)
                at = 0
                while at < size:
                    got = stream.recv_into(content[at : at + _PIECE_BYTES])
                    if got == 0:
                        return
                    digest.update(content[at : at + got])
                    at += got
                kept.append(content)
                stream.sendall(digest.digest())
