"""Diagnose ducks from the store: gathers what it keeps of each, and the fleet's baseline from all of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from duckfleet.fleet.diagnosis import Diagnosis, Look, Unreadable, diagnose, look_from_texts
from duckfleet.fleet.diagnosis.fleet_baseline import Probed, baseline_of
from duckfleet.fleet.diagnosis.probe_report import Report
from duckfleet.fleet.diagnosis.stored import Kept, look_from_store
from duckfleet.fleet.evidence.gather import outside_of
from duckfleet.fleet.musters import expire
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Store
from duckfleet.inventory.store.records import Measurement, ProbeRun

MEASUREMENTS = ("read_bandwidth", "write_bandwidth", "avx2_mhz", "package_temp_c", "rtt_us_p50",
                "kernel.e4m3_gemv", "kernel.fp9_gemv")  # fmt: skip
NUM_RUNS = 5  # of each measurement
NUM_EVENTS = 400  # of the duck
NUM_RECENT = 1000  # of all, for what the boot service told of its neighbours
FLEET_JSON, DUCK_JSON = "fleet.json", "duck.json"
MAX_TEXT_BYTES = 4 << 20


def diagnose_ducks(site: Site, store: Store, ducks: Sequence[Duck]) -> dict[str, Diagnosis]:
    """By MAC. Every duck of the site counts for the baseline."""
    return {mac: diagnose(look) for mac, look in looks_at(site, store, ducks).items()}


def looks_at(site: Site, store: Store, ducks: Sequence[Duck]) -> dict[str, Look]:
    """All that is known of each, by MAC."""
    expire(site, store)
    good, latest = store.latest_probes(outcome="ok"), store.latest_probes()
    probed = {
        duck.mac: Probed(
            Report.of(good[duck.mac].report, good[duck.mac].finished_at_s),
            {name: series[-1].value for name, series in _measurements(store, duck).items()},
        )
        for duck in site.ducks
        if duck.mac in good
    }
    now_s = time.time()
    recent = store.events(limit=NUM_RECENT)
    own = {duck.mac: store.events([duck.mac], limit=NUM_EVENTS) for duck in ducks}
    outside = outside_of(site, ducks, own)
    found = {}
    for duck in ducks:
        known = {event.id: event for event in [*own[duck.mac], *recent]}
        kept = Kept(
            events=[known[number] for number in sorted(known)],
            probes=store.probes(duck.mac, outcome="ok", limit=2),
            failed_probe=_failed(latest.get(duck.mac)),
            measurements=_measurements(store, duck),
        )
        baseline = baseline_of(site, duck, probed)
        found[duck.mac] = look_from_store(duck, kept, baseline, now_s, outside[duck.mac])
    return found


def _measurements(store: Store, duck: Duck) -> dict[str, list[Measurement]]:
    series = {name: store.measurements(duck.mac, name, limit=NUM_RUNS) for name in MEASUREMENTS}
    return {name: values for name, values in series.items() if values}


def _failed(run: ProbeRun | None) -> ProbeRun | None:
    return run if run is not None and run.outcome != "ok" else None


def diagnose_folder(folder: Path) -> Diagnosis:
    """Of raw texts by file name. Raises `OperatorError` for a folder that is none, or says nothing of a duck."""
    if not folder.is_dir():
        raise OperatorError(f"{folder} is no folder of raw texts")
    texts = {}
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in (".txt", ".json", ".log") and path.stat().st_size <= MAX_TEXT_BYTES:
            texts[path.name] = path.read_text(errors="replace")
    if DUCK_JSON not in texts:
        raise OperatorError(f"{folder} has no {DUCK_JSON}: it names the duck and the time of the look")
    shared = folder.parent / "fleet_default.json"
    if FLEET_JSON not in texts and shared.is_file():
        texts[FLEET_JSON] = shared.read_text(errors="replace")
    try:
        return diagnose(look_from_texts(texts))
    except Unreadable as error:
        raise OperatorError(f"{folder / DUCK_JSON} {error}") from error
