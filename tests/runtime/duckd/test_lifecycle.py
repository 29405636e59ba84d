"""Starting, ending, what outlives a duckd, where its threads sit, and a domain's broadcast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from duckfleet.fp9_kernels import chunk_digest, implementations
from duckfleet.runtime.control import ChunkMissing, duckd_path
from duckfleet.runtime.wire import DataHeader, FleetKeys
from tests.runtime.duckd.conftest import place, serve
from tests.runtime.duckd.data_client import DataClient
from tests.runtime.duckd.duck_process import DuckProcess, kept_in, random_address, wait_until
from tests.runtime.duckd.small_model import Oracle, SmallModel


def refused(*arguments: str) -> str:
    """What duckd says when it does not take its arguments."""
    done = subprocess.run([str(duckd_path()), *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "ready" not in done.stdout
    return done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--fleet-key FILE and --enrolment FILE, or --no-auth"),
        (("--fleet-key", "x"), "--fleet-key FILE and --enrolment FILE, or --no-auth"),
        (("--no-auth", "--enrolment", "x"), "exclude each other"),
        (("--no-auth", "--bogus"), "unknown option --bogus"),
        (("--no-auth", "--threads"), "--threads wants"),
        (("--no-auth", "--threads", "0"), "--threads wants a number from 1 to 256, not '0'"),
        (("--no-auth", "--control-port=70000"), "--control-port wants"),
        (("--no-auth", "--cpus", "3-1"), "--cpus wants a list"),
        (("--no-auth", "--cpus", "0,"), "--cpus wants a list"),
        (("--no-auth", "--cpus", "4095"), "cpu 4095 is not ours to use"),
        (("--no-auth", "--spin-us", "-1"), "--spin-us wants"),
        (("--no-auth", "--log-level", "loud"), "--log-level wants"),
        (("--no-auth", "--bind", "duck.example"), "'duck.example' is no IPv4 address"),
        (
            ("--no-auth", "--bind", "127.22.1.1", "--transport", "carrier-pigeon"),
            "'carrier-pigeon' is unknown; there is: udp",
        ),
        (("--no-auth", "--kernels", "abacus"), "abacus"),
        (("--no-auth", "--bind", "192.0.2.1"), "192.0.2.1:9822: Cannot assign requested address"),
        (("--no-auth", "--store", "/proc/nowhere"), "the store /proc/nowhere cannot be used"),
        (("--fleet-key", "/nonexistent", "--enrolment", "/nonexistent"), "/nonexistent: No such file"),
    ],
)
def test_arguments_that_are_not_taken(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


@pytest.mark.parametrize(
    ("name", "content", "mode", "says"),
    [
        ("enrolment.secret", "ab" * 32, 0o644, "can be read by others; run: chmod 600"),
        ("enrolment.secret", "ab" * 31, 0o600, "is not one line of 64 hexadecimal digits"),
        ("fleet.pub", "ab" * 32 + "\nmore\n", 0o644, "is not one line of 64 hexadecimal digits"),
        ("fleet.pub", "", 0o644, "is not one line of 64 hexadecimal digits"),
    ],
)
def test_key_files_that_are_not_taken(tmp_path: Path, name: str, content: str, mode: int, says: str) -> None:
    FleetKeys.generate().save(tmp_path)
    (tmp_path / name).write_text(content)
    (tmp_path / name).chmod(mode)
    said = refused("--fleet-key", str(tmp_path / "fleet.pub"), "--enrolment", str(tmp_path / "enrolment.secret"))
    assert says in said and name in said


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(open_duck: DuckProcess, which: signal.Signals) -> None:
    with open_duck.control() as control:
        control.identity()
        os.kill(open_duck.pid, which)
        assert open_duck.wait_for_exit() == 0
    assert "event=ending" in open_duck.log_text()


def test_a_port_that_is_taken(open_duck: DuckProcess, tmp_path: Path) -> None:
    second = DuckProcess(tmp_path / "second", address=open_duck.address)
    with pytest.raises(AssertionError, match="Address already in use"):
        second.start()


def test_chunks_and_assignment_outlive_the_process(tmp_path: Path) -> None:
    keys, store = FleetKeys.generate(), tmp_path / "store"
    with DuckProcess(tmp_path / "first", keys, ("--store", str(store))) as duck:
        served = serve(duck)
        served.assert_good()
        with duck.control() as control:
            before = control.identity()
    assert store.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in store.iterdir())
    with DuckProcess(tmp_path / "second", keys, ("--store", str(store)), address=duck.address) as duck:
        with duck.control() as control:
            after = control.identity()
            assert after.instance != before.instance
            assert (after.shard_digest, after.held_bytes) == (before.shard_digest, before.held_bytes)
            assert after.assigned and not after.configured
            served.host.session += 2
            control.configure(served.host.session_config())
        served.host.domain_key.sequence = 0  # the new duck knows the keys from this configure on
        served.assert_good()
    served.host.close()


def test_damaged_files_in_the_store(tmp_path: Path) -> None:
    """Files that are no packed chunks are removed, said so, and everything else is kept."""
    keys, store = FleetKeys.generate(), tmp_path / "store"
    with DuckProcess(tmp_path / "first", keys, ("--store", str(store))) as duck:
        serve(duck).host.close()
    names = sorted(path.name for path in store.glob("*.chunk"))
    (store / names[0]).write_bytes(b"DFPK" + bytes(100))
    (store / names[1]).write_bytes(b"")
    (store / ("ab" * 32 + ".partial")).write_bytes(b"half")
    (store / "notes.chunk").write_text("x")
    with DuckProcess(tmp_path / "second", keys, ("--store", str(store))) as duck, duck.control() as control:
        identity = control.identity()
        assert identity.num_chunks == len(names) - 2
        assert not identity.assigned
        log = duck.log_text()
        assert log.count("event=chunk_file_removed") == 3
        assert "event=assignment_not_resumed code=chunk_missing" in log
        model = SmallModel()
        place(control, model, model.chunks())
        assert control.identity().assigned
    assert not list(store.glob("*.partial"))


def test_a_flipped_bit_in_the_store_is_found(tmp_path: Path) -> None:
    """Wherever it is in the file: the chunk is asked for again, and the tokens that follow are right."""
    keys, store = FleetKeys.generate(), tmp_path / "store"
    with DuckProcess(tmp_path / "first", keys, ("--store", str(store))) as duck:
        serve(duck).host.close()
    files = sorted(store.glob("*.chunk"))
    for number, file in enumerate(files):
        content = bytearray(file.read_bytes())
        at = (number * len(content)) // len(files) if number + 1 < len(files) else len(content) - 1
        content[at] ^= 1 << number
        file.write_bytes(content)
    with DuckProcess(tmp_path / "second", keys, ("--store", str(store))) as duck:
        with duck.control() as control:
            assert control.identity().num_chunks == 0
        assert duck.log_text().count("event=chunk_file_removed") == len(files)
        assert "reason=damaged" in duck.log_text()
        served = serve(duck)
        served.assert_good()
        served.host.close()


def test_one_chunk_from_several_connections_at_once(tmp_path: Path) -> None:
    """As when an operator runs `place` twice: all of them end well, one file remains, and it is whole."""
    store = tmp_path / "store"
    model = SmallModel(format="f32", hidden=4096)
    chunk = model.chunk(1, 0)
    senders = 4
    together = threading.Barrier(senders)
    with DuckProcess(tmp_path / "first", None, ("--store", str(store))) as duck:

        def send(_: int) -> None:
            sent = 0

            def all_is_sent(piece: int) -> None:
                nonlocal sent
                sent += piece
                if sent == len(chunk):
                    together.wait(60)

            with duck.control() as control:
                control.put_chunk(chunk_digest(chunk), chunk, all_is_sent)

        with ThreadPoolExecutor(senders) as pool:
            list(pool.map(send, range(senders)))
        with duck.control() as control:
            assert control.identity().num_chunks == 1
    assert kept_in(store) == [f"{chunk_digest(chunk)}.chunk"]
    with DuckProcess(tmp_path / "second", None, ("--store", str(store))) as duck, duck.control() as control:
        assert control.have([chunk_digest(chunk)]) == [True]


def test_a_damaged_assignment(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with DuckProcess(tmp_path / "first", None, ("--store", str(store))) as duck:
        serve(duck).host.close()
    (store / "assignment").write_bytes(b"\xff" * 77)
    with DuckProcess(tmp_path / "second", None, ("--store", str(store))) as duck, duck.control() as control:
        assert not control.identity().assigned
        assert "event=assignment_not_resumed code=malformed" in duck.log_text()


def test_shutdown_may_drop_the_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with DuckProcess(tmp_path / "first", None, ("--store", str(store))) as duck:
        serve(duck).host.close()
        with duck.control() as control:
            control.shutdown(drop_store=True)
        assert duck.wait_for_exit() == 0
    assert kept_in(store) == []


def test_dropped_chunks_leave_no_file(tmp_path: Path) -> None:
    model, store = SmallModel(), tmp_path / "store"
    chunk = model.chunk(0, 0)
    with DuckProcess(tmp_path / "duck", None, ("--store", str(store))) as duck, duck.control() as control:
        control.put_chunk(chunk_digest(chunk), chunk)
        assert len(kept_in(store)) == 1
        control.drop_chunk(chunk_digest(chunk))
        assert kept_in(store) == []
        with pytest.raises(ChunkMissing):
            control.assign(model.assignment([chunk]))


def thread_cpus(pid: int) -> list[set[int]]:
    return [os.sched_getaffinity(int(task.name)) for task in Path(f"/proc/{pid}/task").iterdir()]


def test_threads_are_pinned(tmp_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    last = cpus[-1]
    with DuckProcess(tmp_path, None, ("--cpus", str(last))) as duck:
        # The data thread, which is all of the team; the control plane's threads go where there is room.
        wait_until(lambda: thread_cpus(duck.pid).count({last}) >= 1)
        serve(duck).assert_good()


def test_more_threads_than_cores_do_not_spin(tmp_path: Path) -> None:
    options = ("--threads", "64", "--spin-us", "1000000")
    with DuckProcess(tmp_path, None, options) as duck:
        serve(duck).assert_good()
        assert "event=not_spinning" in duck.log_text()


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_duck_blocks(tmp_path: Path) -> None:
    """Not a measurement: a thread that spun on would use a whole core."""
    with DuckProcess(tmp_path, None, ("--spin-us", "2000")) as duck:
        serve(duck).assert_good()
        before = cpu_s(duck.pid)
        time.sleep(1.0)
        assert cpu_s(duck.pid) - before < 0.2


def test_broadcast_reaches_every_duck_of_a_domain(tmp_path: Path) -> None:
    """Two ranks on loopback's broadcast address, one datagram train for both."""
    model = SmallModel(tp=2)
    data_port = int.from_bytes(os.urandom(2), "little") % 20000 + 20000
    options = ("--broadcast", "127.255.255.255", "--data-port", str(data_port))
    with DuckProcess(tmp_path / "0", None, options) as first, DuckProcess(tmp_path / "1", None, options) as second:
        hosts = []
        for rank, duck in enumerate((first, second)):
            one = SmallModel(tp=2, rank=rank)
            chunks = one.chunks()
            host = DataClient((duck.address, data_port), random_address(), one.assignment(chunks))
            hosts.append((host, one, Oracle(chunks)))
        sender = hosts[0][0]
        hosts[1][0].session, hosts[1][0].socket = sender.session, sender.socket
        hosts[1][0].host_address = sender.host_address
        hosts[1][0]._domain_bytes = sender._domain_bytes
        for (host, one, _), duck in zip(hosts, (first, second), strict=True):
            with duck.control() as control:
                place(control, one, one.chunks())
                control.configure(host.session_config())
        x = np.random.default_rng(3).standard_normal((2, model.hidden), np.float32)
        sender.duck = ("127.255.255.255", data_port)
        sender.send(sender.fragments(1, 0, x))
        got: dict[int, dict[int, bytes]] = {0: {}, 1: {}}
        sender.socket.settimeout(20)
        while any(sum(map(len, pieces.values())) != x.nbytes for pieces in got.values()):
            datagram = sender.socket.recv(65536)
            header = DataHeader.unpack(datagram[:80])
            assert hosts[header.rank][0].duck_key.is_authentic(datagram)
            got[header.rank][header.offset] = datagram[80:]
        for rank, (_, _, oracle) in enumerate(hosts):
            message = b"".join(got[rank][offset] for offset in sorted(got[rank]))
            assert message == oracle.whole(0, rank, x).tobytes()


def tunings(duck: DuckProcess) -> list[str]:
    """What the duck has logged of its tuning, start by start."""
    return [line for line in duck.log_text().splitlines() if "event=tuned" in line]


@pytest.mark.skipif("avx2" not in implementations(), reason="the scalar kernels have nothing to tune")
def test_a_machines_tuning_is_measured_once(tmp_path: Path) -> None:
    """The second start takes the first one's from the store; what another machine or nobody wrote is not believed."""
    store = tmp_path / "store"
    duck = DuckProcess(tmp_path, options=("--store", str(store)))
    kept = store / "tuning.json"
    with duck:
        first = json.loads(kept.read_text())
    with duck:
        assert json.loads(kept.read_text()) == first
    other = {**first, "machine": {**first["machine"], "cpu": "another"}}
    absurd = {**first, "prefetch_bytes": 1 << 40}
    for text in (json.dumps(other), json.dumps(absurd), "{", "[]", '{"prefetch_bytes": -1}'):
        kept.write_text(text)
        with duck:
            assert json.loads(kept.read_text())["machine"] == first["machine"]
    sources = [line.split("source=")[1] for line in tunings(duck)]
    assert sources == ["measured", "kept", *["measured"] * 5]
    assert f"prefetch_bytes={first['prefetch_bytes']} " in tunings(duck)[1]


@pytest.mark.skipif("avx2" not in implementations(), reason="the scalar kernels have nothing to tune")
def test_a_tuning_that_cannot_be_kept_is_logged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (store / "tuning.json").mkdir(parents=True)
    with DuckProcess(tmp_path, options=("--store", str(store))) as duck:
        assert any("event=tuning_not_kept" in line and "tuning.json" in line for line in duck.log_text().splitlines())
