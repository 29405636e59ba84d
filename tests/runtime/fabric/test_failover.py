"""Ducks are killed, stopped and unplugged in the middle of a generation: the stream goes on with the same tokens.

Real duckd processes over UDP, a real decoder and engine over a random model. The fault comes between two requests of
one token, so that each time a forward is under way that somebody else has to finish.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig

from duckfleet.inventory.plan import ShardPlan
from duckfleet.runtime.engine import Engine, GenerationRequest, SamplingParams
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.fabric import FailoverPolicy, LocalFabric, UdpFabric
from duckfleet.runtime.fabric.failover import FailoverEvent
from duckfleet.runtime.model import Checkpoint, load_decoder, prepare
from duckfleet.runtime.model.chunk_store import ChunkStore
from tests.runtime.fabric.duck_processes import Duck, DuckFlock
from tests.runtime.fabric.replicas import with_copies
from tests.runtime.tiny_models import MOE, QWEN3, random_model, save

TP, PARTS = 5, 4
NUM_TOKENS = 12
# Tests share their machine: more patience than a server has by default, and an early second look for missing ducks.
POLICY = FailoverPolicy(silence_floor_s=0.12, silence_cold_s=0.25, reserve_bytes=0, rejoin_every_s=0.05)
FAULT_AT = 11  # the submit before which it happens: the fourth token, between its layers


class Model:
    """A random model, its chunks in a folder, and what it says when all is well."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        vocabulary = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
        config = Qwen3MoeConfig(**{**QWEN3, **MOE, **vocabulary}, mlp_only_layers=[1])
        self.checkpoint = Checkpoint.open(save(random_model(config), folder / "model"))
        self.plan = prepare(self.checkpoint, "tiny", folder / "chunks", tp=TP, parts=PARTS, format="f32")
        self.chunks = ChunkStore(folder / "chunks")
        self.bytes_by_digest = {chunk.digest: self.chunks.read(chunk) for chunk in self.plan.chunks}
        self.expected = self.generate(LocalFabric(self.plan, self.chunks.read))

    def generate(self, fabric: Any) -> list[int]:
        """The tokens of a greedy answer. Raises what ends it early."""
        decoder = load_decoder(self.checkpoint, fabric, num_threads=1)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=NUM_TOKENS, logit_bias={self.tokenizer.eos_token_id: -100.0}
        )
        request = GenerationRequest([[5, 6, 7]], sampling)
        with Engine(decoder, self.tokenizer, ctx=64) as engine:
            return [event.token_id for event in engine.submit(request) if event.token_id is not None]


class Sabotaged:
    """A fabric to which something happens before one of its forwards."""

    def __init__(self, fabric: UdpFabric, at: int, fault: Callable[[], None]) -> None:
        self._fabric, self._at, self._fault = fabric, at, fault
        self._count = 0

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        if self._count == self._at:
            self._fault()
        return self._fabric.submit(*args, **kwargs)

    def wait(self, ticket: Any, out: np.ndarray) -> Any:
        return self._fabric.wait(ticket, out)


class Rules:
    """Packet filter rules of this test alone."""

    TABLE = "duckfleet_test_failover"

    def unplug(self, address: str) -> None:
        subprocess.run(
            ["nft", "-f", "-"],
            input=f"table inet {self.TABLE} {{ chain drops {{ type filter hook input priority 0; "
            f"ip saddr {address} drop; ip daddr {address} drop; }}\n}}\n",
            text=True,
            check=True,
        )

    def plug_in(self) -> None:
        subprocess.run(["nft", "delete", "table", "inet", self.TABLE], capture_output=True)


FAULTS = ("kill", "stop", "unplug")


class Fault:
    """One way for a duck to go, and back."""

    def __init__(self, kind: str, duck: Duck, rules: Rules) -> None:
        self._kind, self._duck, self._rules = kind, duck, rules

    def strike(self) -> None:
        match self._kind:
            case "kill":
                self._duck.kill()
            case "stop":
                self._duck.suspend()
            case "unplug":
                self._rules.unplug(self._duck.address)

    def mend(self) -> None:
        match self._kind:
            case "kill":
                self._duck.log.write_bytes(b"")
                self._duck.start()
                self._duck.wait_ready()
            case "stop":
                self._duck.resume()
            case "unplug":
                self._rules.plug_in()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, byte_level_tokenizer: Any) -> Model:
    return Model(tmp_path_factory.mktemp("model"), byte_level_tokenizer)


@pytest.fixture(scope="module")
def flock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckFlock]:
    with DuckFlock(tmp_path_factory.mktemp("flock"), [3, 3]) as ducks:
        yield ducks


@pytest.fixture
def rules() -> Iterator[Rules]:
    made = Rules()
    made.plug_in()  # what a killed run left
    yield made
    made.plug_in()


def plan_of(model: Model, kind: str) -> ShardPlan:
    return {
        "full": lambda: with_copies(model.plan, PARTS),
        "partial": lambda: with_copies(model.plan, PARTS // 2),
        "spare": lambda: with_copies(model.plan, 0, num_spares=1),
        "none": lambda: model.plan,
    }[kind]()


@contextlib.contextmanager
def session(
    flock: DuckFlock, model: Model, plan: ShardPlan, *, fill_spares: bool = True, **options: Any
) -> Iterator[tuple[UdpFabric, list[Any]]]:
    """A fabric on ducks that hold what the plan gives them and nothing else, and its events."""
    num_spares = len(plan.holders) - plan.tp
    roster = flock.roster(range(plan.tp + num_spares))
    roster = replace(roster, entries=roster.entries[: plan.tp], spares=roster.entries[plan.tp :])
    for entry in (*roster.entries, *(roster.spares if fill_spares else ())):
        wanted = {plan.chunks[i].digest for i in plan.holders[entry.rank]}
        with flock.control(entry) as control:
            for digest, held in zip(model.bytes_by_digest, control.have(list(model.bytes_by_digest)), strict=True):
                if digest in wanted and not held:
                    control.put_chunk(digest, model.bytes_by_digest[digest])
    events: list[FailoverEvent] = []
    settings = {"deadline_s": 10.0, "control_timeout_s": 10.0, "failover": POLICY, "chunk_source": model.chunks.read}
    fabric = UdpFabric(roster, plan, flock.keys, **settings | options, on_failover=events.append)
    try:
        yield fabric, events
    finally:
        fabric.close()


def wait_until_whole(fabric: UdpFabric) -> None:
    deadline = time.monotonic() + 30
    while fabric.stats()["failover"]["ducks_missing"]:
        assert time.monotonic() < deadline, f"not back: {fabric.stats()['missing_ducks']}"
        time.sleep(0.01)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["full", "partial", "spare", "none"])
def test_each_duck_in_turn(flock: DuckFlock, model: Model, rules: Rules, kind: str, fault: str) -> None:
    plan = plan_of(model, kind)
    for victim in range(TP):
        duck = flock.ducks[victim]
        happens = Fault(fault, duck, rules)
        with session(flock, model, plan) as (fabric, events):
            try:
                tokens = model.generate(Sabotaged(fabric, FAULT_AT, happens.strike))
            finally:
                happens.mend()
            assert tokens == model.expected
            told = [event for event in events if event.kind == "taken_over" and duck.name in event.ducks]
            assert told, events
            assert fabric.stats()["failover"]["count"] >= 1
            if victim == TP - 1:
                wait_until_whole(fabric)
                assert any(event.kind == "rejoined" and event.ducks == (duck.name,) for event in events)
                assert model.generate(fabric) == model.expected


def small(flock: DuckFlock, model: Model, **options: Any) -> Any:
    """A session on ducks of which none has room for more than its own."""
    return session(flock, model, model.plan, failover=replace(POLICY, reserve_bytes=1 << 40), **options)


@pytest.mark.parametrize("fault", FAULTS)
def test_without_room_the_error_names_the_duck_and_the_server_lives(
    flock: DuckFlock, model: Model, rules: Rules, fault: str
) -> None:
    duck = flock.ducks[2]
    happens = Fault(fault, duck, rules)
    with small(flock, model, deadline_s=1.5) as (fabric, events):
        begun = time.monotonic()
        try:
            with pytest.raises(DuckLost, match=rf"{duck.name} .*MiB on other ducks, 0.0 MiB are free") as caught:
                model.generate(Sabotaged(fabric, FAULT_AT, happens.strike))
        finally:
            happens.mend()
        assert caught.value.ducks == (duck.name,)
        assert time.monotonic() - begun < 60  # a hang is an error, how long something takes is not
        assert next(event.kind for event in events if event.ducks == (duck.name,)) == "not_covered"
        wait_until_whole(fabric)
        assert model.generate(fabric) == model.expected


def test_a_duck_that_is_back_in_time_saves_the_request(flock: DuckFlock, model: Model, rules: Rules) -> None:
    """It lost its weights, its place and its key; the waiting request never hears of it."""
    happens = Fault("kill", flock.ducks[0], rules)

    def restart() -> None:
        happens.strike()
        threading.Timer(0.4, happens.mend).start()

    with small(flock, model, deadline_s=30.0) as (fabric, events):
        assert model.generate(Sabotaged(fabric, FAULT_AT, restart)) == model.expected
        of_it = [event for event in events if event.ducks == (flock.ducks[0].name,)]
        assert [event.kind for event in of_it] == ["not_covered", "rejoined"]
        assert of_it[-1].moved_bytes > 0


def test_one_after_the_other_until_two_are_left(flock: DuckFlock, model: Model, rules: Rules) -> None:
    gone: list[Fault] = []

    def next_goes() -> None:
        gone.append(Fault("stop", flock.ducks[len(gone)], rules))
        gone[-1].strike()

    with session(flock, model, plan_of(model, "partial")) as (fabric, _events):
        try:
            for _ in range(3):
                assert model.generate(Sabotaged(fabric, FAULT_AT, next_goes)) == model.expected
            assert fabric.stats()["failover"]["ducks_missing"] == 3
        finally:
            for fault in gone:
                fault.mend()
        wait_until_whole(fabric)
        assert model.generate(fabric) == model.expected


def test_a_spare_that_is_off_is_no_hindrance(flock: DuckFlock, model: Model, rules: Rules) -> None:
    spare = flock.ducks[TP]
    off = Fault("kill", spare, rules)
    off.strike()
    try:
        with session(flock, model, plan_of(model, "spare"), fill_spares=False) as (fabric, _events):
            assert fabric.stats()["missing_ducks"] == (spare.name,)
            happens = Fault("stop", flock.ducks[1], rules)
            try:
                assert model.generate(Sabotaged(fabric, FAULT_AT, happens.strike)) == model.expected
            finally:
                happens.mend()
    finally:
        off.mend()


def test_a_duck_of_another_host_is_left_alone(flock: DuckFlock, model: Model) -> None:
    with session(flock, model, model.plan, deadline_s=1.0) as (first, events):
        with session(flock, model, model.plan) as (second, _):
            with pytest.raises(DuckLost):
                model.generate(first)
            time.sleep(0.3)  # in which the first looks for its ducks, several times
            assert model.generate(second) == model.expected
        assert all(event.kind == "not_covered" for event in events)


@pytest.mark.parametrize("kind", ["full", "none"])
def test_a_session_may_begin_without_a_duck(flock: DuckFlock, model: Model, rules: Rules, kind: str) -> None:
    """As a server that is started again while a duck is lost."""
    victim = flock.ducks[3]
    off = Fault("kill", victim, rules)
    plan = plan_of(model, kind)
    with session(flock, model, plan):
        off.strike()
    try:
        roster = flock.roster(range(TP))
        options: dict[str, Any] = {"deadline_s": 10.0, "control_timeout_s": 10.0, "failover": POLICY}
        with pytest.raises(DuckLost, match=victim.name):
            UdpFabric(roster, plan, flock.keys, **options)
        if kind == "none":
            with pytest.raises(DuckLost, match=rf"{victim.name}.*no chunk store"):
                UdpFabric(roster, plan, flock.keys, **options, absent_ok=True)
        fabric = UdpFabric(roster, plan, flock.keys, **options, absent_ok=True, chunk_source=model.chunks.read)
        with contextlib.closing(fabric):
            assert fabric.stats()["missing_ducks"] == (victim.name,)
            assert model.generate(fabric) == model.expected
            off.mend()
            wait_until_whole(fabric)
            assert model.generate(fabric) == model.expected
    finally:
        off.strike()
        off.mend()


@pytest.mark.parametrize("fault", FAULTS)
def test_both_lanes_of_a_long_prompt(flock: DuckFlock, model: Model, rules: Rules, fault: str) -> None:
    """300 tokens are three requests over both lanes; the duck goes when one of them is under way already."""
    tokens = [5 + i * 7 % 250 for i in range(300)]

    def logits(fabric: Any) -> torch.Tensor:
        decoder = load_decoder(model.checkpoint, fabric, num_threads=1)
        return decoder.forward(tokens, decoder.new_cache(300), all_logits=True)

    expected = logits(LocalFabric(model.plan, model.chunks.read))
    happens = Fault(fault, flock.ducks[4], rules)
    with session(flock, model, plan_of(model, "partial")) as (fabric, _events):
        try:
            got = logits(Sabotaged(fabric, 5, happens.strike))
        finally:
            happens.mend()
        assert torch.equal(got, expected)
        assert fabric.stats()["failover"]["count"] >= 1
