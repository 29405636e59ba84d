"""Read from the store what a report rests on."""

from __future__ import annotations

import time
from collections.abc import Sequence

from duckfleet.fleet import musters
from duckfleet.fleet.diagnosing import diagnose_ducks
from duckfleet.fleet.report.build import Gathered
from duckfleet.fleet.report.page import Page, Undelivered
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store

NUM_VALUES = 60  # of each duck and measurement
NUM_EVENTS = 5000  # since the last report, of the whole fleet
FIRST_LOOK_S = 86_400.0  # the first report tells of the last day's events


def gather(
    site: Site, store: Store, previous: Page | None, previous_error: str, undelivered: Sequence[Undelivered]
) -> Gathered:
    """Everything about the ducks of the site, now."""
    diagnoses = diagnose_ducks(site, store, site.ducks)
    at_s = time.time()
    since_s = previous.at_s if previous else at_s - FIRST_LOOK_S
    measured = {
        name: {duck.name: rows for duck in site.ducks if (rows := store.measurements(duck.mac, name, limit=NUM_VALUES))}
        for name in store.measurement_names()
    }
    return Gathered(
        site=site,
        at_s=at_s,
        evidence=musters.gather(site, store),
        diagnoses=diagnoses,
        measured=measured,
        events=[event for event in store.events(limit=NUM_EVENTS) if event.at_s > since_s],
        previous=previous,
        previous_error=previous_error,
        undelivered=undelivered,
    )
