"""A soak of failover by hand: forwards for minutes while others take the CPU; nobody may be replaced.

    python -m tests.runtime.fabric.failover_soak --seconds 600 --hogs 4

Five process ducks that hold each other's parts, the policy that a server has by default. Prints a line now and then,
and at the end how often a duck was taken for silent (each time is a false one), and the longest forward beside the
median. With `--stop-every S` a duck is stopped for two seconds that often, which must be seen each time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from duckfleet.runtime.fabric import FailoverPolicy, LocalFabric, UdpFabric
from duckfleet.runtime.fabric.failover import FailoverEvent
from tests.runtime.fabric.cut_model import WIDE, CutModel
from tests.runtime.fabric.duck_processes import DuckFlock
from tests.runtime.fabric.replicas import with_copies


def hog() -> None:
    """Take a core until killed."""
    while True:
        pass


def main() -> int:
    """Exit status 1 when a duck was replaced that was there, or one was not that was stopped."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=600)
    options.add_argument("--hogs", type=int, default=4)
    options.add_argument("--stop-every", type=float, default=0.0)
    chosen = options.parse_args()
    model = CutModel(WIDE, 5, parts=4)
    plan = with_copies(model.plan, 4)
    local = LocalFabric(plan, model.chunk_bytes)
    hogs = [multiprocessing.Process(target=hog, daemon=True) for _ in range(chosen.hogs)]
    for process in hogs:
        process.start()
    events: list[FailoverEvent] = []
    with tempfile.TemporaryDirectory() as folder, DuckFlock(Path(folder), [5]) as flock:
        roster = flock.roster()
        flock.place(roster, plan, model.chunks)
        udp = UdpFabric(
            roster,
            plan,
            flock.keys,
            deadline_s=20.0,
            control_timeout_s=60.0,
            failover=FailoverPolicy(),
            on_failover=events.append,
        )
        num_false, num_stops, num_wrong = _forwards(udp, local, model, flock, events, chosen.seconds, chosen.stop_every)
        udp.close()
    for process in hogs:
        process.kill()
    num_seen = sum(event.kind == "taken_over" for event in events) - num_false
    print(f"false failovers: {num_false}; stops: {num_stops}, seen: {num_seen}; wrong sums: {num_wrong}")
    return int(num_false > 0 or num_wrong > 0 or num_seen < num_stops)


def _forwards(
    udp: UdpFabric,
    local: LocalFabric,
    model: CutModel,
    flock: DuckFlock,
    events: list[FailoverEvent],
    seconds: float,
    stop_every_s: float,
) -> tuple[int, int, int]:
    """(false failovers, stops, wrong sums)."""
    begun = told = time.monotonic()
    stop_at = begun + stop_every_s if stop_every_s else float("inf")
    resume_at, victim = float("inf"), 0
    times_s: list[float] = []
    num_wrong = num_stops = num_false = i = num_heard = 0
    while (now := time.monotonic()) < begun + seconds:
        i += 1
        if now >= stop_at:
            victim = num_stops % len(flock.ducks)
            flock.ducks[victim].suspend()
            num_stops += 1
            stop_at, resume_at = float("inf"), now + 2.0
        if now >= resume_at:
            flock.ducks[victim].resume()
            resume_at, stop_at = float("inf"), now + stop_every_s
        layer, num_tokens = i % model.shape.num_layers, 40 if i % 50 == 0 else 1
        x, experts, weights = model.inputs(layer, num_tokens, i % 7)
        out = np.empty_like(x)
        start = time.perf_counter()
        udp.wait(udp.submit(layer, x, experts, weights), out)
        times_s.append(time.perf_counter() - start)
        if i % 20 == 0:
            expected = np.empty_like(x)
            local.wait(local.submit(layer, x, experts, weights), expected)
            num_wrong += not np.array_equal(out.view(np.uint32), expected.view(np.uint32))
        for event in events[num_heard:]:
            stopped = resume_at != float("inf") or (num_stops and now < stop_at - stop_every_s + 1.0)
            was_there = not stopped or flock.ducks[victim].name not in event.ducks
            num_false += event.kind == "taken_over" and was_there
            print(f"{now - begun:7.1f} s  {event.text} (silent {event.silent_ms:.0f} ms, took {event.took_ms:.0f} ms)")
        num_heard = len(events)
        if now > told + 20:
            told = now
            middle_ms, longest_ms = statistics.median(times_s) * 1e3, max(times_s) * 1e3
            print(
                f"{now - begun:7.1f} s  {i} forwards, median {middle_ms:.1f} ms, longest {longest_ms:.1f} ms",
                flush=True,
            )
            times_s = []
    if resume_at != float("inf"):
        flock.ducks[victim].resume()
    return num_false, num_stops, num_wrong


if __name__ == "__main__":
    raise SystemExit(main())
