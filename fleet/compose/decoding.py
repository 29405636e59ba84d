"""A standing model without a server, for measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from duckfleet.fleet.compose.models import stored_model
from duckfleet.fleet.compose.plans import read_plan

if TYPE_CHECKING:
    from duckfleet.fleet.context import FleetContext
    from duckfleet.fleet.musters import Standing
    from duckfleet.inventory.roster import Roster


@dataclass(frozen=True, slots=True)
class BareDecoder:
    """A standing model without a server, one sequence at a time from a fixed prompt."""

    decode: Callable[[int], dict[str, float]]
    """Decodes so many tokens greedily, one by one; the fabric's share in microseconds (prepare, send, wait, fetch) and
    the whole ("all")."""
    prefill: Callable[[int], float]
    """Runs a prompt of so many tokens; microseconds until its logits."""


@contextmanager
def bare_decoder(
    fleet: FleetContext, standing: Standing, *, host_format: str | None = None, num_threads: int = 1
) -> Iterator[BareDecoder]:
    """The standing model, its host side in `host_format` (None: as stored) on `num_threads` threads."""
    from duckfleet.runtime.fabric import UdpFabric
    from duckfleet.runtime.model import Checkpoint, load_decoder

    plan = read_plan(standing.plan_text, str(standing.folder))
    stored = stored_model(fleet.models_dir, standing.model)
    checkpoint = Checkpoint.open(stored.path, stored.folder / "derived")
    fabric = UdpFabric(
        standing.roster, plan, fleet.keys, deadline_s=10.0, auth=not fleet.no_auth, spin_us=spin_us_for(standing.roster)
    )
    try:
        decoder = load_decoder(checkpoint, fabric, host_format=host_format, num_threads=num_threads)

        def decode(num_tokens: int) -> dict[str, float]:
            cache = decoder.new_cache(num_tokens + 16)
            token = int(decoder.forward(list(range(1, 9)), cache)[-1].numpy().argmax())
            spent = dict.fromkeys(("prepare", "send", "wait", "fetch"), 0.0)
            began = time.perf_counter()
            for _ in range(num_tokens):
                token = int(decoder.forward([token], cache)[-1].numpy().argmax())
                for part in spent:
                    spent[part] += getattr(decoder.timing, f"{part}_us")
            return {**spent, "all": 1e6 * (time.perf_counter() - began)}

        def prefill(num_tokens: int) -> float:
            cache = decoder.new_cache(num_tokens)
            prompt = [1 + i % (decoder.vocab_size - 1) for i in range(num_tokens)]
            began = time.perf_counter()
            decoder.forward(prompt, cache)
            return 1e6 * (time.perf_counter() - began)

        yield BareDecoder(decode, prefill)
    finally:
        fabric.close()


def spin_us_for(roster: Roster) -> int:
    """Spinning answers sooner, but in a lab it would take the cores from the ducks."""
    return 0 if any(domain.host_address.startswith("127.") for domain in roster.domains) else 50
