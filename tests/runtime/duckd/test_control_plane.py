"""Every control message against a real duckd, and each refusal by its own type."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from duckfleet.fp9_kernels import chunk_digest
from duckfleet.runtime import control as c
from duckfleet.runtime.errors import DuckLost, IdentityMismatch
from duckfleet.runtime.wire import FleetKeys, TagAlgorithm
from duckfleet.runtime.wire.handshake import HandshakeFailed
from tests.runtime.duckd.conftest import Served, place, serve
from tests.runtime.duckd.data_client import DataClient
from tests.runtime.duckd.duck_process import CONTROL_PORT, DATA_PORT, DuckProcess, kept_in, random_address
from tests.runtime.duckd.small_model import MODEL_DIGEST, Oracle, SmallModel


def test_identity_before_and_after(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        fresh = control.identity()
        assert not fresh.assigned and not fresh.configured
        assert fresh.protocol_version == 1 and fresh.data_port == DATA_PORT
        assert fresh.num_threads == 1 and fresh.kernels in ("scalar", "avx2")
        assert TagAlgorithm.CHACHA20_POLY1305 in fresh.tag_algorithms
        assert fresh.wire_dtypes == ("f32", "f16", "bf16")
        assert fresh.mem_total_bytes > fresh.mem_available_bytes > 0
    served = serve(keyed_duck)
    with keyed_duck.control() as control:
        identity = control.identity()
    assignment = served.model.assignment(served.chunks)
    assert identity.assigned and identity.configured
    assert identity.instance == fresh.instance
    assert (identity.rank, identity.tp, identity.format) == (1, 3, "fp9")
    assert (identity.hidden, identity.num_layers) == (served.model.hidden, served.model.num_layers)
    assert identity.model_digest == MODEL_DIGEST
    assert identity.shard_digest == assignment.shard_digest
    assert identity.session == served.host.session
    assert identity.num_chunks == identity.num_assigned == len(served.chunks)
    assert identity.held_bytes > 0


def test_handshake_with_wrong_keys(keyed_duck: DuckProcess) -> None:
    ours, other = keyed_duck.keys, FleetKeys.generate()
    assert ours is not None
    with pytest.raises(HandshakeFailed, match="testduck is not to be trusted"):
        keyed_duck.control(other)
    for wrong in (
        FleetKeys(ours.private, ours.public, other.enrolment),
        FleetKeys(other.private, other.public, ours.enrolment),
    ):
        with pytest.raises(HandshakeFailed, match="proof is wrong"):
            keyed_duck.control(wrong)
    with keyed_duck.control() as control:
        assert control.identity()


def test_plain_client_of_a_keyed_duck(keyed_duck: DuckProcess) -> None:
    with pytest.raises(c.AuthRequired, match=r"testduck.*fleet's keys only"):
        c.ControlClient(keyed_duck.address, CONTROL_PORT, None, 10, name="testduck")
    with keyed_duck.control() as control:
        assert control.stats()["control"]["auth_missing"] == 1


def test_keyed_client_of_an_open_duck(open_duck: DuckProcess) -> None:
    with pytest.raises(c.AuthNotConfigured, match="--no-auth"):
        open_duck.control(FleetKeys.generate())
    with open_duck.control() as control:
        assert control.identity()
    assert "event=no_auth" in open_duck.log_text()


def test_chunks(keyed_duck: DuckProcess) -> None:
    chunk = SmallModel().chunk(0, 0)
    digest, other = chunk_digest(chunk), "00" * 32
    with keyed_duck.control() as control:
        assert control.have([digest, other]) == [False, False]
        sent: list[int] = []
        control.put_chunk(digest, chunk, sent.append)
        assert sum(sent) == len(chunk)
        assert control.have([digest, other]) == [True, False]
        assert control.have([]) == []
        control.put_chunk(digest, memoryview(chunk), sent.append)  # held: nothing travels
        assert sum(sent) == 2 * len(chunk)
        assert control.stats()["control"]["chunk_bytes_received"] == len(chunk)
        control.drop_chunk(digest)
        assert control.have([digest]) == [False]
        control.drop_chunk(other)


def test_a_duck_makes_room_for_another_plan(tmp_path: Path) -> None:
    old, new = SmallModel(seed=1), SmallModel(seed=2)
    ours = [chunk_digest(chunk) for chunk in (*old.chunks(), *new.chunks())]
    with DuckProcess(tmp_path, options=("--store", str(tmp_path / "store"))) as duck, duck.control() as control:
        for chunk in (*old.chunks(), *new.chunks()[:1]):
            control.put_chunk(chunk_digest(chunk), chunk)
        control.assign(old.assignment())
        control.keep_only(ours)  # nothing is to go
        assert control.identity().assigned
        control.keep_only(ours[4:])
        assert control.have(ours) == [False] * 4 + [True] + [False] * 3
        assert not control.identity().assigned
        assert kept_in(tmp_path / "store") == [f"{ours[4]}.chunk"]


def test_bad_chunks(keyed_duck: DuckProcess) -> None:
    model = SmallModel(format="e4m3")
    chunk = bytearray(model.chunk(0, 0))
    with keyed_duck.control() as control:
        with pytest.raises(c.ChunkDigestMismatch, match=chunk_digest(bytes(chunk))):
            control.put_chunk("11" * 32, bytes(chunk))
        with pytest.raises(c.ChunkInvalid):
            control.put_chunk(chunk_digest(b"rubbish" * 50), b"rubbish" * 50)
        cut = bytes(chunk[:-1])
        with pytest.raises(c.ChunkInvalid):
            control.put_chunk(chunk_digest(cut), cut)
        with pytest.raises(c.ChunkSizeRefused):
            control.put_chunk("11" * 32, b"")
        chunk[64 + 16 + 5] = 0x7F  # a NaN code in the first row of gate
        with pytest.raises(c.ChunkInvalid, match="gate"):
            control.put_chunk(chunk_digest(bytes(chunk)), bytes(chunk))
        assert control.identity().num_chunks == 0
        good = model.chunk(0, 0)
        control.put_chunk(chunk_digest(good), good)
        stats = control.stats()["control"]
        assert (stats["chunks_stored"], stats["chunks_refused"]) == (1, 4)


def test_assignment_is_checked(keyed_duck: DuckProcess) -> None:
    model = SmallModel()
    chunks = model.chunks()
    assignment = model.assignment(chunks)
    with keyed_duck.control() as control:
        with pytest.raises(c.ChunkMissing, match=assignment.digests[0]):
            control.assign(assignment)
        place(control, model, chunks)
        for change, error in (
            ({"format": "e4m3"}, c.ChunkUnfit),
            ({"hidden": 128}, c.ChunkUnfit),
            ({"num_layers": 1}, c.ChunkUnfit),
            ({"rank": 0, "tp": 1}, c.ChunkUnfit),
            ({"digests": assignment.digests + assignment.digests[:1]}, c.ChunkUnfit),
            ({"rank": 128}, c.DuckRefused),
            ({"tp": 65}, c.DuckRefused),
            ({"hidden": 0}, c.DuckRefused),
            ({"num_layers": 1 << 20}, c.DuckRefused),
        ):
            with pytest.raises(error):
                control.assign(dataclasses.replace(assignment, **change))
        assert control.identity().shard_digest == assignment.shard_digest
        with pytest.raises(c.ChunkInUse):
            control.drop_chunk(assignment.digests[0])
        control.assign(dataclasses.replace(assignment, generation=5))
        with pytest.raises(c.StaleGeneration, match="plan generation 4 is older than 5"):
            control.assign(dataclasses.replace(assignment, generation=4))


IDENTITY_CHANGES = [
    ("model_digest", "cd" * 32, c.ModelDigestMismatch),
    ("shard_digest", "cd" * 32, c.ShardDigestMismatch),
    ("rank", 2, c.RankMismatch),
    ("tp", 4, c.TpMismatch),
    ("format", "e4m3", c.FormatMismatch),
    ("num_layers", 4, c.NumLayersMismatch),
    ("hidden", 128, c.HiddenMismatch),
]


@pytest.mark.parametrize(("name", "value", "error"), IDENTITY_CHANGES)
def test_identity_mismatch_has_its_own_error(
    served: Served, name: str, value: object, error: type[IdentityMismatch]
) -> None:
    config = dataclasses.replace(served.host.session_config(), **{name: value})
    with served.duck.control() as control, pytest.raises(error, match="testduck"):
        control.configure(config)
    assert issubclass(error, IdentityMismatch)
    log = served.duck.log_text()
    assert f"event=identity_mismatch code={name} " in log
    served.assert_good()  # the session that was running goes on


def test_wire_dtype_and_tag_algorithm_mismatch(served: Served) -> None:
    from duckfleet.runtime.wire import Configure, ControlType

    good = Configure.unpack(served.host.session_config().to_wire())
    with served.duck.control() as control:
        for change, error in (({"wire_dtype": 3}, c.WireDtypeMismatch), ({"tag_algorithm": 9}, c.TagAlgorithmMismatch)):
            with pytest.raises(error, match="testduck"):
                control._request(ControlType.CONFIGURE, dataclasses.replace(good, **change).pack(), ControlType.OK)
            assert f"event=identity_mismatch code={next(iter(change))} " in served.duck.log_text()
        for change in ({"session": 0}, {"host_port": 0}, {"reply_fragment_bytes": 100}, {"duck_key_id": 1}):
            with pytest.raises(c.DuckRefused):
                control._request(ControlType.CONFIGURE, dataclasses.replace(good, **change).pack(), ControlType.OK)
    served.assert_good()


def test_session_needs_an_assignment(keyed_duck: DuckProcess, served: Served, tmp_path: Path) -> None:
    with (
        DuckProcess(tmp_path / "second", keyed_duck.keys) as second,
        second.control() as control,
        pytest.raises(c.NotAssigned),
    ):
        control.configure(served.host.session_config())


def test_older_roster_generation_is_refused(served: Served) -> None:
    with served.duck.control() as control:
        control.configure(dataclasses.replace(served.host.session_config(), generation=7))
        with pytest.raises(c.StaleGeneration, match="roster generation 6 is older than 7"):
            control.configure(dataclasses.replace(served.host.session_config(), generation=6))
        assert control.identity().generation == 7


def test_the_same_assignment_leaves_the_session_alone(served: Served) -> None:
    with served.duck.control() as control:
        control.assign(served.model.assignment(served.chunks, generation=2))
        assert control.identity().configured
        served.assert_good()
        control.assign(served.model.assignment(served.chunks[:2], generation=3))
        assert not control.identity().configured


def test_a_larger_assignment_extends_the_session(served: Served) -> None:
    """A duck that takes over parts of another goes on serving its own meanwhile."""
    more = [served.model.chunk(0, part, slice_=2) for part in range(2)]
    x = served.x(2)
    with served.duck.control() as control:
        for chunk in more:
            control.put_chunk(chunk_digest(chunk), chunk)
        control.assign(served.model.assignment([*served.chunks, *more]))
        identity = control.identity()
        assert (identity.session, identity.num_assigned) == (served.host.session, len(served.chunks) + 2)
    served.assert_good()
    step = served.next_step()
    served.host.send(served.host.fragments(step, 0, x, slice=2, part=0b11, rank=served.model.rank))
    for part in range(2):
        assert np.array_equal(served.host.reply(step, 2, part), Oracle(more).part(0, 2, part, x, None, None))


def test_a_spare_has_a_rank_beyond_the_last_and_answers_for_parts_alone(keyed_duck: DuckProcess) -> None:
    model = SmallModel(rank=5)  # of tp 3
    chunks = [model.chunk(0, part, slice_=2) for part in range(2)]
    host = DataClient((keyed_duck.address, DATA_PORT), random_address(), model.assignment(chunks))
    with keyed_duck.control() as control:
        place(control, model, chunks)
        control.configure(host.session_config())
        x = np.ones((1, model.hidden), np.float32)
        host.send(host.fragments(1, 0, x))  # to every duck, for its own slice
        host.send(host.fragments(2, 0, x, slice=2, part=0b10, rank=model.rank))
        assert np.array_equal(host.reply(2, 2, 1), Oracle(chunks).part(0, 2, 1, x, None, None))
        assert control.stats()["data"]["drops"]["not_held"] > 0
    host.close()


def test_probe(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        probe = control.probe(measure=False)
        assert "measured" not in probe
        assert probe["cpu"]["num_allowed"] == len(os.sched_getaffinity(0))
        assert probe["memory"]["total_bytes"] > probe["memory"]["available_bytes"] > 0
        assert probe["kernel"]["release"] == os.uname().release
        assert all({"what", "reason"} == set(entry) for entry in probe["unknown"])
        measured = control.probe()["measured"]
    for way in ("read", "write"):
        assert measured[f"{way}_bandwidth"]["bytes_per_s"] > 1e8
    if {"avx2", "fma"} <= set(probe["cpu"]["flags"]):
        assert all(mhz > 0 for sample in measured["frequency"]["samples"] for mhz in sample["mhz"])


def nulls(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if value is None:
        yield path
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield from nulls(inner, (*path, key))
    for inner in filter(lambda one: isinstance(one, dict), value) if isinstance(value, list) else ():
        yield from nulls(inner, (*path, str(inner.get("name") or inner.get("locator") or inner.get("path"))))


def test_probe_from_the_command_line() -> None:
    out = subprocess.run([str(c.duckd_path()), "--probe"], check=True, capture_output=True, text=True).stdout
    probe = json.loads(out)
    names = {p.name for p in Path("/sys/class/net").iterdir() if p.is_dir()} - {"lo"}
    assert {nic["name"] for nic in probe["nics"]} == names
    # Whatever is null is said to be unknown, with a reason, and nothing is left out in silence.
    told = [entry["what"] for entry in probe["unknown"]]
    for path in nulls(probe):
        assert any(".".join(path).startswith(what) for what in told), path
    # Each part says where it was read, and when: in order, by the clock since boot.
    sources = {entry["what"]: entry for entry in probe["sources"]}
    assert {"cpu", "memory", "clock", "storage", "nics"} <= set(sources)
    times = [entry["at_s"] for entry in probe["sources"]]
    assert times == sorted(times) and all(entry["source"] for entry in sources.values())
    assert abs(probe["finished_at_s"] - probe["started_at_s"] - probe["took_s"]) < 60


def test_counters_of_the_driver_itself() -> None:
    """A veth's driver tells the index of its peer among its counters."""
    with veth() as name:
        out = subprocess.run([str(c.duckd_path()), "--probe"], check=True, capture_output=True, text=True).stdout
        peer = int((Path("/sys/class/net") / f"{name}p" / "ifindex").read_text())
    (card,) = [nic for nic in json.loads(out)["nics"] if nic["name"] == name]
    assert card["driver_counters"]["peer_ifindex"] == peer
    assert card["device_gone"] is False and card["driver_version"]


@contextlib.contextmanager
def veth() -> Iterator[str]:
    name = f"dk{os.getpid() % 100000}"
    try:
        subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "link", "delete", name], check=False)


def test_kernels_under_sustained_load(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        measured = control.probe(sustained_s=1)["measured"]
    assert len(measured["frequency"]["samples"]) == 1
    assert set(measured["kernels"]["gb_per_s"]) == {"e4m3_gemv", "fp9_gemv"}
    assert all(rate > 0 for rates in measured["kernels"]["gb_per_s"].values() for rate in rates)
    assert measured["kernels"]["implementation"] in ("scalar", "avx2")


def test_memory_test_over_the_wire(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        probe = control.probe(measure=False, memory_s=1)
        test = probe.get("memory_test")
        if test is None:  # a machine too busy to do one pattern in the time says so
            assert any(entry["what"] == "memory_test" for entry in probe["unknown"])
            return
        assert test["num_errors"] == 0 and test["errors"] == []
        assert test["tested_bytes"] > 1 << 20 and set(test["patterns"]) <= {
            "address", "random", "moving_inversions", "walking_ones"
        }  # fmt: skip


def test_stats_counts_by_kind(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        stats = control.stats()
    assert stats["uptime_s"] >= 0
    assert set(stats["data"]["drops"]) >= {"bad_magic", "bad_tag", "replayed", "stale_step", "foreign_address"}
    assert stats["control"]["connections"] == 1


def test_shutdown(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        control.shutdown()
    assert keyed_duck.wait_for_exit() == 0
    assert "event=ending" in keyed_duck.log_text()


def test_shutdown_is_refused_without_the_key(keyed_duck: DuckProcess) -> None:
    from duckfleet.runtime.wire import ControlHeader, ControlMode, ControlType, Hello
    from tests.runtime.duckd.raw_control import exchange

    shutdown = ControlHeader(type=ControlType.SHUTDOWN, request_id=2, length=4).pack() + bytes(4)
    hello = ControlHeader(type=ControlType.HELLO, length=40).pack() + Hello(ControlMode.PLAIN).pack()
    keyed_hello = (
        ControlHeader(type=ControlType.HELLO, length=40).pack()
        + Hello(ControlMode.KEYED, ephemeral=b"\x09" * 32).pack()
    )
    for attack in (shutdown, hello + shutdown, keyed_hello + (24).to_bytes(4, "little") + bytes(24) + shutdown):
        exchange(keyed_duck.address, attack)
    assert keyed_duck.is_alive()
    with keyed_duck.control() as control:
        assert control.identity()


def test_nobody_there() -> None:
    with pytest.raises(DuckLost, match="duck d7: control connection failed"):
        c.ControlClient("127.22.255.254", 9, None, 2, name="d7")


def test_a_duck_that_is_killed_is_lost(keyed_duck: DuckProcess) -> None:
    with keyed_duck.control() as control:
        control.identity()
        assert keyed_duck.process is not None
        keyed_duck.process.kill()
        assert keyed_duck.wait_for_exit() == -9
        with pytest.raises(DuckLost, match="testduck"):
            control.identity()
