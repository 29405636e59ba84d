"""`duckctl bench decode`: tokens a second of a real model on a lab of process ducks, and where the time goes.

The ducks are started, woken, probed and given the weights as in any other fleet; the decoder runs in this process
without the HTTP server, so that nothing but decoding is measured. Beside the rate stands what the ducks' kernels would
allow alone: their median compute time of a forward, as they measured it themselves in the same run. `--peer` runs
llama.cpp in turn with ours (peer.py), on the Q8_0 of the same model.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from duckfleet.fleet import compose
from duckfleet.fleet.bench.peer import peer_of
from duckfleet.fleet.bench.small_fleet import fleet_with
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.demo_report import compute_p50_us_of
from duckfleet.fleet.musters import load_current
from duckfleet.fleet.reach import connect

LOWER = ", lower is better"


def rows(
    model: str = "smollm2-135m",
    ducks: int = 2,
    duck_threads: int = 1,
    tokens: int = 64,
    format: str = "e4m3",
    host_threads: int = 2,
    rounds: int = 5,
    peer: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Row `smollm2/ducks2x1` (tok/s), and its split a token in microseconds; medians over the rounds.

    The host's own matrices are in `format` too. With `peer` also `smollm2/vs-rpc` (against llama.cpp with as many RPC
    workers of as many threads as the ducks) and `smollm2/vs-plain` (with those threads in one process).
    """
    short = model.partition("-")[0]
    name = f"{short}/ducks{ducks}x{duck_threads}"
    llama, q8_0 = peer_of(model) if peer else (None, None)
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(fleet_with(model, ducks, duck_threads, format))
        standing = load_current(fleet.rosters_dir, fleet.keys)
        decode = stack.enter_context(
            compose.bare_decoder(fleet, standing, host_format=format, num_threads=host_threads)
        ).decode
        turns: dict[str, Callable[[], float]] = {}
        if llama is not None and q8_0 is not None:
            threads = ducks * duck_threads
            workers = stack.enter_context(llama.rpc_workers(ducks, duck_threads))
            turns["rpc"] = lambda: llama.tokens_per_s(q8_0, threads=threads, generate=tokens, rpc=workers)
            turns["plain"] = lambda: llama.tokens_per_s(q8_0, threads=threads, generate=tokens)
        decode(tokens)  # warm up
        splits: list[dict[str, float]] = []
        theirs: dict[str, list[float]] = {turn: [] for turn in turns}
        for _ in range(rounds):
            splits.append({part: us / tokens for part, us in decode(tokens).items()})
            for turn, run in turns.items():
                theirs[turn].append(run())
        yield from _split(fleet, name, splits)
    ours = [1e6 / split["all"] for split in splits]
    yield from versus(short, ours, theirs, {"rpc": f"{ducks} RPC workers x {duck_threads}", "plain": "one process"})


def versus(
    short: str, ours: list[float], theirs: Mapping[str, list[float]], setups: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    """Rows `vs-…`: the median of the ratios of runs made one after the other; the value is llama.cpp's own rate."""
    for turn, rates in theirs.items():
        yield {
            "name": f"{short}/vs-{turn}",
            "value": statistics.median(rates),
            "unit": "tok/s of llama.cpp",
            "ratio": statistics.median(a / b for a, b in zip(ours, rates, strict=True)),
            "against": f"llama.cpp Q8_0, {setups[turn]}, in turn with ours",
        }


def _split(fleet: FleetContext, name: str, splits: list[dict[str, float]]) -> Iterator[Mapping[str, Any]]:
    compute_us = []
    for duck in fleet.site.ducks:
        with connect(fleet.site, duck, fleet.keys) as client:
            compute_us.append(compute_p50_us_of(client.stats()))
    token_us = statistics.median(split["all"] for split in splits)
    yield {"name": name, "value": 1e6 / token_us, "unit": "tok/s"}
    for part in splits[0]:
        if part != "all":
            yield {
                "name": f"{name}/{part}",
                "value": statistics.median(split[part] for split in splits),
                "unit": f"us a token{LOWER}",
                "ratio": statistics.median(split[part] / split["all"] for split in splits),
                "against": "a token, same run",
            }
    yield {"name": f"{name}/duck-compute-p50", "value": max(compute_us), "unit": f"us a forward{LOWER}"}
