"""Who the duck is, by the site file, and when it was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import json_object, moment, words


@dataclass(frozen=True, slots=True)
class DuckIdentity:
    name: str
    address: str
    mac: str
    domain: str
    rack: str
    interface: str  # as last known, or empty
    now: datetime


def parse(text: str) -> DuckIdentity:
    """Raises `Unreadable` without a name or a time."""
    fields = json_object(text)
    now = moment(fields.get("now"))
    if now is None or not words(fields.get("name")):
        raise Unreadable("has no name or no time")
    name, address, mac, domain, rack, interface = (
        words(fields.get(key)) for key in ("name", "address", "mac", "domain", "rack", "interface")
    )
    return DuckIdentity(name, address, mac.lower(), domain, rack, interface, now)
