"""Site file text for a person to go on editing: whole files, and blocks to append."""

from __future__ import annotations

import json
from collections.abc import Sequence

from duckfleet.inventory import nodeset
from duckfleet.inventory.site import DEFAULT_CONTROL_PORT, DEFAULT_DATA_PORT, DEFAULT_WOL_PORT, Domain, Duck


def duck_block(duck: Duck, comment: str = "") -> str:
    """One `[[ducks]]` table."""
    lines = [f"# {line}" for line in comment.splitlines()]
    lines += ["[[ducks]]", f"mac = {_text(duck.mac)}", f"name = {_text(duck.name)}", f"address = {_text(duck.address)}"]
    for key, value in (
        ("rack", duck.rack),
        ("notes", duck.notes),
        ("outlet", duck.outlet),
        ("secure_on", duck.secure_on),
    ):
        if value:
            lines.append(f"{key} = {_text(value)}")
    if duck.power != "wol":
        lines.append(f"power = {_text(duck.power)}")
    return "\n".join(lines) + "\n"


def domain_block(domain: Domain) -> str:
    """One `[[domains]]` table; values that are defaults are left out."""
    lines = [
        "[[domains]]",
        f"name = {_text(domain.name)}",
        f"interface = {_text(domain.interface)}",
        f"host_address = {_text(domain.host_address)}",
        f"nodes = {_text(nodeset.fold(domain.addresses))}",
    ]
    if domain.prefix_len != 24:
        lines.append(f"prefix_len = {domain.prefix_len}")
    if domain.broadcast != str(domain.network.broadcast_address):
        lines.append(f"broadcast = {_text(domain.broadcast)}")
    if domain.mtu != 1500:
        lines.append(f"mtu = {domain.mtu}")
    for key, value, default in (
        ("control_port", domain.control_port, DEFAULT_CONTROL_PORT),
        ("data_port", domain.data_port, DEFAULT_DATA_PORT),
        ("wol_port", domain.wol_port, DEFAULT_WOL_PORT),
    ):
        if value != default:
            lines.append(f"{key} = {value}")
    return "\n".join(lines) + "\n"


def site_text(name: str, domains: Sequence[Domain], ducks: Sequence[Duck], *, header: str = "", extra: str = "") -> str:
    """A whole site file. `extra` is TOML put between the fleet's table and the domains (expectations, power)."""
    top = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    blocks = [top + f"[fleet]\nname = {_text(name)}\n"]
    if extra:
        blocks.append(extra.strip("\n") + "\n")
    blocks += [domain_block(domain) for domain in domains]
    blocks += [duck_block(duck) for duck in ducks]
    return "\n".join(blocks)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
