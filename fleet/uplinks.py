"""How fast this host's ports and the ducks' are: what decides whether ducks fetch from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from duckfleet.fleet.transfers import Link
from duckfleet.inventory.site import Duck, Site


def links(site: Site, ducks: Sequence[Duck], reports: Mapping[str, Mapping[str, Any]]) -> list[Link]:
    """By domain. `reports`: the ducks' newest probes by MAC; where none tells, what the site file expects counts."""
    import psutil

    ports = psutil.net_if_stats()
    found = []
    for name in sorted({duck.domain for duck in ducks}):
        port = ports.get(site.domain(name).interface)
        speeds = tuple(_duck_mbps(duck, reports.get(duck.mac, {})) for duck in ducks if duck.domain == name)
        found.append(Link(name, port.speed if port else 0, speeds))
    return found


def _duck_mbps(duck: Duck, report: Mapping[str, Any]) -> int:
    cards = report.get("nics")
    for card in cards if isinstance(cards, list) else []:
        if isinstance(card, dict) and str(card.get("mac", "")).lower() == duck.mac.lower():
            speed = card.get("speed_mbit_per_s")
            if isinstance(speed, int) and speed > 0:
                return speed
    return duck.expect.link_mbps or 0
