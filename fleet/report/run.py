"""Make one report: gather, build, render, keep, deliver. One at a time for a state directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet import console
from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.report import archive
from duckfleet.fleet.report.archive import Rendered
from duckfleet.fleet.report.build import build_page
from duckfleet.fleet.report.delivery import outbox
from duckfleet.fleet.report.delivery.settings import FILE as SETTINGS_FILE
from duckfleet.fleet.report.delivery.settings import load_settings
from duckfleet.fleet.report.gather import gather
from duckfleet.fleet.report.page import Undelivered
from duckfleet.inventory.file_lock import held_alone

REPORTS = "reports"


@dataclass(frozen=True, slots=True)
class Made:
    """A report that was made and kept, and whom it did not reach."""

    rendered: Rendered
    path: Path  # of the HTML file
    undelivered: tuple[Undelivered, ...]


def make_report(
    fleet: FleetContext,
    *,
    settings_path: Path | None = None,
    to_deliver: bool = True,
    waits_s: Sequence[float] = outbox.WAITS_S,
) -> Made:
    """A report on all ducks of the site, compared with the last one, sent to whom `report.toml` names.

    Raises `OperatorError` for a site file or settings that are of no use: before anything is made.
    """
    targets = outbox.targets_of(load_settings(settings_path or fleet.state_dir / SETTINGS_FILE))
    site = fleet.site
    fleet.make_state_dir()
    folder = fleet.state_dir / REPORTS
    folder.mkdir(exist_ok=True, mode=0o700)
    with held_alone(folder, lambda: console.note("another report is being made; waiting for it")):
        late = outbox.pending(folder)
        if to_deliver:
            with fleet.at_home():
                late = outbox.try_again(folder, targets)
        previous, error = archive.latest(folder)
        rendered = archive.render(build_page(gather(site, fleet.known_store, previous, error, late)))
        path = archive.save(folder, rendered)
        failed: tuple[Undelivered, ...] = ()
        if to_deliver:
            # Kept before the first attempt: whoever is killed in the middle of it has not lost what waits.
            outbox.keep(folder, late)
            with fleet.at_home():
                failed = outbox.deliver(rendered, targets, waits_s)
            outbox.keep(folder, (*late, *failed))
        return Made(rendered, path, failed)
