"""`ethtool IFACE`: what the link negotiated, what either side offers, and whether the device is still there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import integer, not_an_answer

GONE = r"No such device|no device matches name"


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """None or empty: the driver does not say."""

    device_gone: bool
    speed_mbps: int | None = None
    full_duplex: bool | None = None
    link: bool | None = None
    autonegotiation: bool | None = None
    offered_mbps: int | None = None  # the fastest we advertise
    partner_mbps: int | None = None  # the fastest the other side advertises
    partner_negotiates: bool | None = None
    wake_supported: str = ""  # letters of ethtool(8), g: magic packet
    wake_on: str = ""


def parse(text: str) -> LinkSettings:
    """Raises `Unreadable` unless it has settings or says that the device is gone."""
    if re.search(GONE, text):
        return LinkSettings(device_gone=True)
    fields = dict(re.findall(r"^[ \t]+([A-Za-z][^:\n]*?):[ \t]*(.*(?:\n[ \t]+[0-9]+base\S.*)*)$", text, re.MULTILINE))
    if "Link detected" not in fields and "Speed" not in fields:
        raise not_an_answer(text)
    speed = re.match(r"([0-9]{1,7})Mb/s", fields.get("Speed", ""))
    return LinkSettings(
        device_gone=False,
        speed_mbps=integer(speed[1]) if speed else None,
        full_duplex=_choice(fields.get("Duplex", ""), "Full", "Half"),
        link=_choice(fields.get("Link detected", ""), "yes", "no"),
        autonegotiation=_choice(fields.get("Auto-negotiation", ""), "on", "off"),
        offered_mbps=_fastest(fields.get("Advertised link modes", "")),
        partner_mbps=_fastest(fields.get("Link partner advertised link modes", "")),
        partner_negotiates=_choice(fields.get("Link partner advertised auto-negotiation", ""), "Yes", "No"),
        wake_supported=fields.get("Supports Wake-on", "").strip(),
        wake_on=fields.get("Wake-on", "").strip(),
    )


def _choice(text: str, yes: str, no: str) -> bool | None:
    return {yes: True, no: False}.get(text.split(" ")[0].strip())


def _fastest(modes: str) -> int | None:
    return max(map(int, re.findall(r"\b([0-9]{1,7})base", modes)), default=None)
