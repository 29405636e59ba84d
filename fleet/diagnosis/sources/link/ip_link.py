"""`ip -s -s link show`: interfaces, carrier, MTU. An interface may say UP with its device gone."""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.raw import not_an_answer


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    mac: str
    carrier: bool | None
    mtu: int
    carrier_changes: int | None


def parse(text: str) -> tuple[Interface, ...]:
    """All interfaces but loopback. Raises `Unreadable` where there is no interface at all."""
    heads = list(
        re.finditer(r"^[0-9]{1,5}: ([^:\s@]+)(?:@\S+)?: <([^>\n]*)> mtu ([0-9]{1,6})\b.*$", text, re.MULTILINE)
    )
    if not heads:
        raise not_an_answer(text)
    found = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)]
        flags = head[2].split(",")
        if "LOOPBACK" in flags:
            continue
        mac = re.search(r"\bpermaddr ([0-9a-f:]{17})", body) or re.search(r"link/ether ([0-9a-f:]{17})", body)
        carrier = True if "LOWER_UP" in flags else False if "NO-CARRIER" in flags or "UP" in flags else None
        found.append(Interface(head[1], mac[1] if mac else "", carrier, int(head[3]), _carrier_changes(body)))
    return tuple(found)


def _carrier_changes(body: str) -> int | None:
    errors = re.search(r"TX errors:([^\n]*)\n([ 0-9]+)$", body, re.MULTILINE)
    if errors is None:
        return None
    columns = dict(zip(errors[1].split(), errors[2].split(), strict=False))
    value = columns.get("transns", "")
    return int(value) if re.fullmatch(r"[0-9]{1,12}", value) else None
