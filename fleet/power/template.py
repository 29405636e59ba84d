"""The templates of command and HTTP power sources, by action."""

from __future__ import annotations

from collections.abc import Callable

from duckfleet.fleet import templates
from duckfleet.fleet.errors import PowerUnsupported
from duckfleet.inventory.site import Domain, Duck, PowerSource


def fill(source: PowerSource, action: str, duck: Duck, domain: Domain, quote: Callable[[str], str]) -> str:
    """The template of an action with this duck's values, each passed through `quote`.

    Raises `PowerUnsupported` when the source has no template for the action.
    """
    template = {"on": source.on, "off": source.off, "cycle": source.cycle}[action]
    if not template:
        raise PowerUnsupported(f"duck {duck.name}: [power.{source.name}] of the site file has no {action!r}")
    return templates.fill(template, duck, domain, quote)
