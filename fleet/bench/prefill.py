"""`duckctl bench prefill`: a long prompt through a real model on a lab of process ducks.

`--peer` runs llama.cpp in turn with ours, as in `bench decode`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from duckfleet.fleet import compose
from duckfleet.fleet.bench.decode import versus
from duckfleet.fleet.bench.peer import peer_of
from duckfleet.fleet.bench.small_fleet import fleet_with
from duckfleet.fleet.musters import load_current


def rows(
    model: str = "smollm2-135m",
    ducks: int = 2,
    duck_threads: int = 1,
    tokens: int = 512,
    format: str = "e4m3",
    host_threads: int = 2,
    rounds: int = 5,
    peer: bool = False,
) -> Iterator[Mapping[str, Any]]:
    """Row `smollm2/prefill512` (tok/s), the median over the rounds; with `peer` also `smollm2/prefill512/vs-plain`."""
    short = f"{model.partition('-')[0]}/prefill{tokens}"
    llama, q8_0 = peer_of(model) if peer else (None, None)
    ours: list[float] = []
    theirs: list[float] = []
    with fleet_with(model, ducks, duck_threads, format) as fleet:
        standing = load_current(fleet.rosters_dir, fleet.keys)
        with compose.bare_decoder(fleet, standing, host_format=format, num_threads=host_threads) as decoder:
            decoder.prefill(tokens)  # warm up
            for _ in range(rounds):
                ours.append(1e6 * tokens / decoder.prefill(tokens))
                if llama is not None and q8_0 is not None:
                    theirs.append(llama.tokens_per_s(q8_0, threads=ducks * duck_threads, prompt=tokens))
    yield {"name": short, "value": statistics.median(ours), "unit": "tok/s"}
    if theirs:
        yield from versus(short, ours, {"plain": theirs}, {"plain": "one process"})
