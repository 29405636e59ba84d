"""Filling in the site file's templates of power and evidence sources with the values of a duck."""

from __future__ import annotations

from collections.abc import Callable

from duckfleet.inventory.site import Domain, Duck


def fill(template: str, duck: Duck, domain: Domain, quote: Callable[[str], str] = str) -> str:
    """The template with this duck's values (`EVIDENCE_FIELDS`), each passed through `quote`."""
    values = {
        "name": duck.name,
        "mac": duck.mac,
        "address": duck.address,
        "domain": domain.name,
        "interface": domain.interface,
        "outlet": duck.outlet,
        "switch_port": duck.switch_port,
    }
    return template.format(**{key: quote(value) for key, value in values.items()})
