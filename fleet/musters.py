"""Gather what the store knows for a roster, and keep signed rosters and plans in the state directory."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet import lifecycle
from duckfleet.fleet.probe_facts import facts_of
from duckfleet.fleet.rosters import Evidence
from duckfleet.fleet.signing import check_file, check_roster, roster_from_json, sign_file, sign_roster
from duckfleet.inventory.codec import canonical_json
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.roster import Roster
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store
from duckfleet.inventory.whole_file import write_whole
from duckfleet.runtime.wire import FleetKeys

PLAN_FILE = "plan.json"
ROSTER_FILE = "roster.json"
ABOUT_FILE = "about.json"
CURRENT_FILE = "current"
KEEP = 5


def expire(site: Site, store: Store) -> None:
    """Take the time-out of every duck whose state has lasted too long."""
    now_s = time.time()
    rows = store.ducks()
    for duck in site.ducks:
        row = rows.get(duck.mac)
        if row is not None and lifecycle.is_overdue(row.state, row.confirmed_s, now_s):
            evidence = {"in_state": row.state, "since_s": row.since_s, "limit_s": lifecycle.TIMEOUT_S[row.state]}
            store.transition(duck, "timed_out", evidence, _still_overdue(row.state))


def _still_overdue(state: str) -> lifecycle.Decide:
    """Another process may have moved the duck on since it was looked at; then its state stays."""

    def decide(current: str, event: str) -> str:
        return lifecycle.next_state(current, event) if current == state else current

    return decide


def gather(site: Site, store: Store) -> dict[str, Evidence]:
    """What is known of every duck of the site, by MAC."""
    expire(site, store)
    rows, probes = store.ducks(), store.latest_probes(outcome="ok")
    holds = store.holds()
    gathered = {}
    for duck in site.ducks:
        probe = probes.get(duck.mac)
        gathered[duck.mac] = Evidence(
            rows.get(duck.mac),
            facts_of(probe.report) if probe else None,
            probe.finished_at_s if probe else 0.0,
            tuple(hold for hold in holds if hold.mac == duck.mac),
        )
    return gathered


@dataclass(frozen=True, slots=True)
class Standing:
    """A signed roster and plan, checked: what `serve` takes."""

    folder: Path
    roster: Roster
    plan_text: str
    model: str  # the name it was placed by


def save_roster(folder: Path, roster: Roster, plan_text: str, model: str, keys: FleetKeys | None) -> Roster:
    """Sign roster and plan and write them under `folder/<generation>`; they do not stand until `make_current`."""
    home = folder / str(roster.generation)
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    signed = sign_roster(roster, keys)
    (home / PLAN_FILE).write_text(plan_text)
    sign_file(home / PLAN_FILE, keys)
    (home / ABOUT_FILE).write_text(json.dumps({"model": model}))
    (home / ROSTER_FILE).write_bytes(canonical_json(signed))
    return signed


def make_current(folder: Path, generation: int) -> None:
    """From now on this generation stands; older ones than the last few are removed."""
    write_whole(folder / CURRENT_FILE, f"{generation}\n")
    kept = sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
    for old in kept[:-KEEP]:
        if int(old.name) < generation:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()


def load_current(folder: Path, keys: FleetKeys | None) -> Standing:
    """The standing roster and plan. Raises `OperatorError` when there is none, `SignatureInvalid` when not ours."""
    try:
        home = folder / (folder / CURRENT_FILE).read_text().strip()
        model = str(json.loads((home / ABOUT_FILE).read_text())["model"])
        text = (home / ROSTER_FILE).read_bytes()
    except FileNotFoundError as error:
        raise OperatorError(
            "no weights are placed yet; `duckctl place MODEL` places them and makes a roster"
        ) from error
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise OperatorError(
            f"{folder}: the roster cannot be read ({error}); `duckctl place MODEL` makes one"
        ) from error
    roster = roster_from_json(text, str(home / ROSTER_FILE))
    check_roster(roster, keys, str(home / ROSTER_FILE))
    try:
        plan_text = check_file(home / PLAN_FILE, keys).decode()
    except UnicodeDecodeError as error:  # with --no-auth nothing vouches for the bytes
        raise OperatorError(f"{home / PLAN_FILE} is no text ({error}); run `duckctl place` again") from error
    return Standing(home, roster, plan_text, model)
