"""What roles are told beside the inventory: files of this host, unit texts and commands that the product itself makes.

Units, the settings for latency and the guarded command come from where the product makes them for its own use, so
that there is one source of each.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from duckfleet.fleet.context import FleetContext
from duckfleet.fleet.doctor import WANTED_RMEM_BYTES
from duckfleet.fleet.playbooks.catalogue import Playbook, Value
from duckfleet.fleet.report.schedule import Nightly, parse_time
from duckfleet.fleet.supervise import unit_text
from duckfleet.fleet.switching import ACTIONS, guarded

SERVE_UNIT = "duckfleet.service"


def variables_of(
    playbook: Playbook, fleet: FleetContext, values: dict[str, Value], host_boot_id: str
) -> dict[str, Any]:
    """The settings by their names, and what this playbook needs of the product."""
    made: dict[str, Any] = dict(values)
    if playbook.is_for_host:
        made["host_rmem_bytes"] = WANTED_RMEM_BYTES
        made["host_units"] = _host_units(fleet, str(values["report_at"]))
        return made
    from duckfleet.runtime.control import duckd_path

    made["duckd_source"] = str(duckd_path())
    made["duckd_fleet_key"] = str(fleet.keys_dir / "fleet.pub")
    made["duckd_enrolment"] = str(fleet.keys_dir / "enrolment.secret")
    made["tune_source"] = str(Path(str(files("duckfleet.pxe") / "image/root/etc/duckfleet/tune")))
    made["poweroff_check"] = guarded("true", host_boot_id)
    made["poweroff_command"] = guarded(ACTIONS["off"], host_boot_id)
    return made


def _host_units(fleet: FleetContext, report_at: str) -> list[dict[str, Any]]:
    """Units of `duckctl serve` and of the nightly report, as `--print-unit` and `report install` write them."""
    state, site = str(fleet.state_dir), str(fleet.site_path.absolute())
    words = (sys.executable, "-m", "duckfleet.fleet.cli", "--state", state, "--site", site)
    hour, minute = parse_time(report_at)
    nightly = Nightly((*words, "report"), fleet.state_dir, hour, minute)
    # The server is not started here: without weights on the ducks it would only fail.
    units: list[dict[str, Any]] = [
        {"name": SERVE_UNIT, "text": unit_text([*words, "serve"], state), "enable": True, "start": False}
    ]
    for name, text in nightly.files.items():
        is_timer = name.endswith(".timer")
        units.append({"name": name, "text": text, "enable": is_timer, "start": is_timer})
    return units
