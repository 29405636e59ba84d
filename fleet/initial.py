"""The first site file: from flags, or from questions asked on a terminal."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.mac import parse_mac
from duckfleet.inventory.sitefile import SiteFileError, parse_site

_HEADER = """\
# The site file of a duckfleet: docs/operations.md lists every key.
# Identity is the MAC. `duckctl discover` finds boxes that are not in here yet."""
_NEW = Path("the new site file")
_THERE = "{path} is there already; --force overwrites it, an editor changes it"


@dataclass(frozen=True, slots=True)
class NewDomain:
    """A domain as an operator states it."""

    name: str
    interface: str
    host_address: str
    nodes: str


@dataclass(frozen=True, slots=True)
class NewDuck:
    """A duck as an operator states it."""

    mac: str
    address: str
    name: str = ""
    rack: str = ""


def parse_domain(text: str) -> NewDomain:
    """`NAME,IFACE,HOST,NODES`; the node set may hold commas of its own."""
    parts = [part.strip() for part in text.split(",", 3)]
    if len(parts) != 4 or not all(parts):
        raise OperatorError(
            f"--domain {text!r}: write NAME,IFACE,HOST,NODES, for instance d1,enp1s0f0,10.21.1.1,10.21.1.[101-108]"
        )
    return NewDomain(*parts)


def parse_duck(text: str) -> NewDuck:
    """`MAC,ADDRESS[,NAME[,RACK]]`."""
    parts = [part.strip() for part in text.split(",", 3)]
    if len(parts) < 2 or not all(parts[:2]):
        raise OperatorError(f"--duck {text!r}: write MAC,ADDRESS[,NAME[,RACK]]")
    return NewDuck(parse_mac(parts[0]), *parts[1:])


def ask_domains(complain: Callable[[str], None]) -> list[NewDomain]:
    """Ask which of this host's interfaces lead to ducks; an answer that cannot be is said and asked for again."""
    import psutil

    found: list[NewDomain] = []
    for interface, items in sorted(psutil.net_if_addrs().items()):
        for item in items:
            if item.family != socket.AF_INET or interface == "lo":
                continue
            network = ipaddress.IPv4Network(f"{item.address}/{item.netmask}", strict=False)
            if not typer.confirm(f"Are ducks on {interface} ({item.address}/{network.prefixlen})?", default=False):
                continue
            found.append(_ask_domain(interface, item.address, found, complain))
    return found


def _ask_domain(
    interface: str, address: str, before: Sequence[NewDomain], complain: Callable[[str], None]
) -> NewDomain:
    while True:
        name = typer.prompt("  What is this domain called?", default=f"d{len(before) + 1}")
        stem = address.rsplit(".", 1)[0]
        nodes = typer.prompt("  Which addresses may its ducks have?", default=f"{stem}.[101-108]")
        domain = NewDomain(name, interface, address, nodes)
        try:
            site_file("fleet", [*before, domain], [])
        except OperatorError as error:
            complain(f"  {error}")
            continue
        return domain


def require_new(path: Path) -> None:
    """Raises `OperatorError` when there is a site file already."""
    if path.exists():
        raise OperatorError(_THERE.format(path=path))


def site_file(
    name: str,
    domains: Sequence[NewDomain],
    ducks: Sequence[NewDuck],
    *,
    ram_gib: float | None = None,
    link_mbps: int | None = None,
    cpu: str | None = None,
) -> str:
    """The text, checked by the same reader that will read it. Raises `OperatorError` about what was stated."""
    lines = [_HEADER, "", "[fleet]", f"name = {_quoted(name)}", ""]
    lines.append("[expect]  # what every healthy duck has; a duck may state its own")
    for key, value, example in (("ram_gib", ram_gib, "32"), ("link_mbps", link_mbps, "2500")):
        lines.append(f"{key} = {value:g}" if value is not None else f"# {key} = {example}")
    lines += [f"cpu = {_quoted(cpu)}" if cpu else '# cpu = "N100"', ""]
    for domain in domains:
        lines.append("[[domains]]")
        lines += [f"{key} = {_quoted(getattr(domain, key))}" for key in ("name", "interface", "host_address", "nodes")]
        lines.append("")
    for duck in ducks:
        lines.append("[[ducks]]")
        values = ((key, getattr(duck, key)) for key in ("mac", "name", "address", "rack"))
        lines += [f"{key} = {_quoted(value)}" for key, value in values if value]
        lines.append("")
    text = "\n".join(lines)
    try:
        parse_site(text, _NEW)
    except SiteFileError as error:  # lines of a file that nobody has seen would not help
        stated = (re.sub(rf"^{_NEW}(:\d+)?: ", "", complaint) for complaint in error.complaints)
        raise OperatorError("\n".join(stated)) from error
    return text


def write_site(path: Path, text: str, *, force: bool) -> None:
    """Raises `OperatorError` when there is one and it is not to be overwritten."""
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise OperatorError(_THERE.format(path=path)) from error
    except OSError as error:
        raise OperatorError(f"{path} cannot be written: {error.strerror}") from error


def _quoted(text: str) -> str:
    import json

    return json.dumps(text, ensure_ascii=False)
