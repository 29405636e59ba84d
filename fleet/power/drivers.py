"""The table of power drivers."""

from __future__ import annotations

from duckfleet.fleet.power.command import CommandPower
from duckfleet.fleet.power.http import HttpPower
from duckfleet.fleet.power.interface import PowerDriver
from duckfleet.fleet.power.person import Ask, PersonPower, nobody
from duckfleet.fleet.power.wol import WakeOnLan
from duckfleet.fleet.power.wol_raw import RawWakeOnLan
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.site import POWER_DRIVERS, Duck, PowerSource, Site


def driver_for(source: PowerSource, *, repeats: int = 3, ask: Ask = nobody) -> PowerDriver:
    """The driver of a power source. Raises `OperatorError` for one that does not exist."""
    match source.driver:
        case "wol":
            return WakeOnLan(repeats)
        case "wol-raw":
            return RawWakeOnLan(repeats)
        case "command":
            return CommandPower(source)
        case "http":
            return HttpPower(source)
        case "person":
            return PersonPower(ask)
    raise OperatorError(f"no power driver {source.driver!r}; there are {', '.join(POWER_DRIVERS)}")


def power_of(site: Site, duck: Duck, *, ask: Ask = nobody) -> PowerDriver:
    """The driver that switches this duck."""
    return driver_for(site.power_source(duck.power), repeats=site.start.repeats, ask=ask)
