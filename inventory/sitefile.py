"""The site file: TOML text in, a validated `Site` out; every complaint names file, line and value."""

from __future__ import annotations

import difflib
import ipaddress
import string
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from duckfleet.inventory import site as records
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.mac import normalise_octets, parse_mac
from duckfleet.inventory.nodeset import expand_addresses
from duckfleet.inventory.site import Domain, Duck, EvidenceSource, Expectations, PowerSource, Site, StartPolicy
from duckfleet.inventory.toml_lines import KeyPath, key_lines, line_of

_T = TypeVar("_T")
_REQUIRED = object()
_WRAPPERS = ("sudo", "doas", "env", "nohup", "timeout", "exec", "command")
_HOST_COMMANDS = ("poweroff", "reboot", "halt", "shutdown", "systemctl", "loginctl", "init", "telinit", "rtcwake")
_EXPECT_KEYS = ("ram_gib", "link_mbps", "cpu")
_KEYS = {
    "": ("fleet", "expect", "start", "power", "evidence", "domains", "ducks"),
    "fleet": ("name", "control_port", "data_port", "wol_port", "mtu", "power"),
    "expect": _EXPECT_KEYS,
    "start": ("stagger_s", "repeats", "retry_s"),
    "evidence": ("driver", "target", "community", "watts", "relay", "timeout_s"),
    "power": ("driver", "on", "off", "cycle", "method", "timeout_s"),
    "domains": (
        "name", "interface", "host_address", "prefix_len", "nodes", "broadcast", "mtu", "wol_port", "control_port",
        "data_port",
    ),
    "ducks": ("mac", "name", "address", "rack", "notes", "power", "outlet", "secure_on", "expect", "switch_port"),
}  # fmt: skip


class SiteFileError(OperatorError):
    """The site file does not say something usable; one line a complaint, `file:line: what = value: why`."""

    def __init__(self, complaints: list[str]) -> None:
        super().__init__("\n".join(complaints))
        self.complaints = tuple(complaints)


def load_site(path: Path) -> Site:
    """Read and validate a site file. Raises `SiteFileError` with every complaint at once."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise SiteFileError([f"{path}: there is no such site file; `duckctl init` writes one"]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise SiteFileError([f"{path}: cannot be read: {error}"]) from error
    return parse_site(text, path)


def _is_interface(name: str) -> bool:
    """By the rules of Linux (`dev_valid_name`); IFNAMSIZ is 16 bytes with its NUL."""
    is_plain = name.isprintable() and not any(char.isspace() or char in "/:" for char in name)
    return is_plain and 0 < len(name.encode()) < 16 and name not in (".", "..")


def parse_site(text: str, path: Path) -> Site:
    """`load_site` for text already at hand; `path` is what complaints name."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SiteFileError([f"{path}: {error}"]) from error
    return _Reader(document, key_lines(text), path).site()


class _Reader:
    def __init__(self, document: dict[str, Any], lines: dict[KeyPath, int], path: Path) -> None:
        self.document = document
        self.lines = lines
        self.path = path
        self.complaints: list[str] = []
        self.domains_are_sound = True

    # -- complaints and values --------------------------------------------------------------------------

    def complain(self, path: KeyPath, value: object, why: str) -> None:
        dotted = ""
        for part in path:
            dotted += f"[{part}]" if isinstance(part, int) else ("." if dotted else "") + part
        shown = "" if value is _REQUIRED else f" = {value!r}"
        self.complaints.append(f"{self.path}:{line_of(self.lines, path)}: {dotted}{shown}: {why}")

    def table(self, path: KeyPath, kind: str, value: object) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.complain(path, value, "must be a table")
            return {}
        for key in value:
            if key not in _KEYS[kind]:
                near = difflib.get_close_matches(key, _KEYS[kind], 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(_KEYS[kind])}"
                self.complain((*path, key), _REQUIRED, f"unknown key; {hint}")
        return value

    def tables(self, key: str) -> list[tuple[KeyPath, dict[str, Any]]]:
        value = self.document.get(key, [])
        if not isinstance(value, list):
            self.complain((key,), value, f"must be a list of tables: write [[{key}]]")
            return []
        return [((key, i), self.table((key, i), key, item)) for i, item in enumerate(value)]

    def get(self, path: KeyPath, table: dict[str, Any], key: str, kind: type[_T], default: object = _REQUIRED) -> _T:
        """`table[key]`; a stand-in of the same type after a complaint, so that reading goes on."""
        stand_in = kind() if default is _REQUIRED else default
        if key not in table:
            if default is _REQUIRED:
                self.complain((*path, key), _REQUIRED, "is missing")
            return stand_in  # type: ignore[return-value]
        value = table[key]
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)  # type: ignore[return-value]
        if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
            self.complain((*path, key), value, f"must be {_TYPE_NAMES[kind]}")
            return stand_in  # type: ignore[return-value]
        return value

    def parse(self, path: KeyPath, text: str, parser: Callable[[str], _T]) -> _T | None:
        try:
            return parser(text)
        except (OperatorError, ValueError) as error:
            self.complain(path, text, str(error))
            return None

    def bounded(self, path: KeyPath, table: dict[str, Any], key: str, low: float, high: float, default: _T) -> _T:
        value = self.get(path, table, key, type(default), default)
        if not low <= value <= high:  # type: ignore[operator]
            self.complain((*path, key), value, f"must be between {low:g} and {high:g}")
            return default
        return value

    # -- the parts of the file --------------------------------------------------------------------------

    def site(self) -> Site:
        self.table((), "", self.document)
        fleet = self.table(("fleet",), "fleet", self.document.get("fleet", {}))
        power = self.power_sources()
        domains = self.domains(fleet)
        ducks = self.ducks(domains, power, fleet)
        evidence = self.evidence_sources()
        start = self.table(("start",), "start", self.document.get("start", {}))
        policy = StartPolicy(
            self.bounded(("start",), start, "stagger_s", 0, 3600, StartPolicy().stagger_s),
            self.bounded(("start",), start, "repeats", 1, 100, StartPolicy().repeats),
            self.bounded(("start",), start, "retry_s", 0.1, 3600, StartPolicy().retry_s),
        )
        name = self.get(("fleet",), fleet, "name", str, "fleet")
        if self.complaints:
            raise SiteFileError(self.complaints)
        return Site(name, self.path, tuple(domains), tuple(ducks), tuple(power), policy, tuple(evidence))

    def expectations(self, path: KeyPath, value: object) -> Expectations:
        table = self.table(path, "expect", value)
        ram_gib = self.bounded(path, table, "ram_gib", 0.25, 4096, 0.25) if "ram_gib" in table else None
        link = self.bounded(path, table, "link_mbps", 10, 1_000_000, 10) if "link_mbps" in table else None
        cpu = self.get(path, table, "cpu", str, "") if "cpu" in table else None
        return Expectations(None if ram_gib is None else round(ram_gib * 2**30), link, cpu)

    def power_sources(self) -> list[PowerSource]:
        sources = {name: PowerSource(name, name) for name in ("wol", "wol-raw", "person")}
        tables = self.document.get("power", {})
        if not isinstance(tables, dict):
            self.complain(("power",), tables, "must hold tables: write [power.NAME]")
            tables = {}
        for name, value in tables.items():
            path = ("power", name)
            table = self.table(path, "power", value)
            driver = self.get(path, table, "driver", str)
            if driver not in records.POWER_DRIVERS:
                self.complain((*path, "driver"), driver, f"must be one of {', '.join(records.POWER_DRIVERS)}")
            templates = {key: self.get(path, table, key, str, "") for key in ("on", "off", "cycle")}
            if driver in ("command", "http") and not any(templates.values()):
                self.complain(path, _REQUIRED, f"driver {driver!r} needs at least one of on, off, cycle")
            for key, text in templates.items():
                self.template((*path, key), text)
            sources[name] = PowerSource(
                name,
                driver,
                on=templates["on"],
                off=templates["off"],
                cycle=templates["cycle"],
                method=self.get(path, table, "method", str, "POST").upper(),
                timeout_s=self.bounded(path, table, "timeout_s", 0.1, 600, 10.0),
            )
        return list(sources.values())

    def evidence_sources(self) -> list[EvidenceSource]:
        tables = self.document.get("evidence", {})
        if not isinstance(tables, dict):
            self.complain(("evidence",), tables, "must hold tables: write [evidence.NAME]")
            return []
        sources = []
        for name, value in tables.items():
            path = ("evidence", name)
            table = self.table(path, "evidence", value)
            driver = self.get(path, table, "driver", str)
            if driver not in records.EVIDENCE_DRIVERS:
                self.complain((*path, "driver"), driver, f"must be one of {', '.join(records.EVIDENCE_DRIVERS)}")
            target = self.get(path, table, "target", str)
            if driver in ("command", "http"):
                self.template((*path, "target"), target, records.EVIDENCE_FIELDS)
            sources.append(
                EvidenceSource(
                    name,
                    driver,
                    target,
                    self.get(path, table, "community", str, "public"),
                    self.get(path, table, "watts", str, ""),
                    self.get(path, table, "relay", str, ""),
                    self.bounded(path, table, "timeout_s", 0.1, 60, 5.0),
                )
            )
        return sources

    def template(self, path: KeyPath, text: str, allowed: tuple[str, ...] = records.TEMPLATE_FIELDS) -> None:
        """Nothing meant for a duck may run on the host: a template names its duck, and is no command about the host."""
        if not text:
            return
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            self.complain(path, text, f"cannot be filled in: {error}")
            return
        known = ", ".join(f"{{{name}}}" for name in allowed)
        unknown = [name for name in fields if name not in allowed]
        if unknown:
            self.complain(path, text, f"cannot be filled in: {{{unknown[0]}}} is not known; known: {known}")
        elif not fields:
            self.complain(path, text, f"would do the same for every duck: name the duck in it by one of {known}")
        elif self.aims_at_host(text):
            self.complain(path, text, "would act on this host: a command template calls a client of a plug or PDU")

    @staticmethod
    def aims_at_host(text: str) -> bool:
        words = text.split()
        while words and (PurePosixPath(words[0]).name in _WRAPPERS or "=" in words[0] or words[0].startswith("-")):
            words.pop(0)
        return bool(words) and PurePosixPath(words[0]).name in _HOST_COMMANDS

    def domains(self, fleet: dict[str, Any]) -> list[Domain]:
        ports = {
            key: self.bounded(("fleet",), fleet, key, 1, 65535, default)
            for key, default in (
                ("control_port", records.DEFAULT_CONTROL_PORT),
                ("data_port", records.DEFAULT_DATA_PORT),
                ("wol_port", records.DEFAULT_WOL_PORT),
            )
        }
        mtu = self.bounded(("fleet",), fleet, "mtu", 576, 9216, 1500)
        found: list[Domain] = []
        before = len(self.complaints)
        for path, table in self.tables("domains"):
            domain = self.domain(path, table, ports, mtu)
            if domain is not None and self.apart(path, domain, found):
                found.append(domain)
        self.domains_are_sound = len(self.complaints) == before
        return found

    def domain(self, path: KeyPath, table: dict[str, Any], ports: dict[str, int], mtu: int) -> Domain | None:
        before = len(self.complaints)
        name = self.get(path, table, "name", str)
        interface = self.get(path, table, "interface", str)
        nodes = self.get(path, table, "nodes", str)
        host_text = self.get(path, table, "host_address", str)
        prefix_len = self.bounded(path, table, "prefix_len", 8, 30, 24)
        if len(self.complaints) > before:
            return None
        host = self.parse((*path, "host_address"), host_text, ipaddress.IPv4Address)
        addresses = self.parse((*path, "nodes"), nodes, expand_addresses)
        if not name or "@" in name:
            self.complain((*path, "name"), name, "must be a name without '@'")
        if not _is_interface(interface):
            self.complain((*path, "interface"), interface, "must be the name of a network interface")
        if host is None or addresses is None or len(self.complaints) > before:
            return None
        network = ipaddress.IPv4Network(f"{host}/{prefix_len}", strict=False)
        for address in addresses:
            if ipaddress.IPv4Address(address) not in network:
                self.complain((*path, "nodes"), nodes, f"{address} is outside {network}, the host's network there")
                break
        if str(host) in addresses:
            self.complain((*path, "nodes"), nodes, f"{host} is the host's own address there")
        if len(self.complaints) > before:
            return None
        broadcast_text = self.get(path, table, "broadcast", str, str(network.broadcast_address))
        broadcast = self.parse((*path, "broadcast"), broadcast_text, ipaddress.IPv4Address)
        if broadcast is not None and str(broadcast) in addresses:
            self.complain((*path, "broadcast"), broadcast_text, "is one of the domain's nodes")
        return Domain(
            name,
            interface,
            str(host),
            prefix_len,
            addresses,
            str(broadcast),
            self.bounded(path, table, "mtu", 576, 9216, mtu),
            self.bounded(path, table, "wol_port", 1, 65535, ports["wol_port"]),
            self.bounded(path, table, "control_port", 1, 65535, ports["control_port"]),
            self.bounded(path, table, "data_port", 1, 65535, ports["data_port"]),
        )

    def apart(self, path: KeyPath, domain: Domain, others: Iterable[Domain]) -> bool:
        for other in others:
            if other.name == domain.name:
                self.complain((*path, "name"), domain.name, "is the name of another domain")
                return False
            if other.network.overlaps(domain.network):
                self.complain(
                    (*path, "host_address"),
                    domain.host_address,
                    f"{domain.network} overlaps {other.network} of domain {other.name!r}: a duck would hear both",
                )
                return False
            if (other.broadcast, other.data_port) == (domain.broadcast, domain.data_port):
                self.complain(
                    (*path, "broadcast"),
                    domain.broadcast,
                    f"domain {other.name!r} has the same broadcast address and data_port: a duck would hear both",
                )
                return False
        return True

    def ducks(self, domains: list[Domain], power: list[PowerSource], fleet: dict[str, Any]) -> list[Duck]:
        common = self.expectations(("expect",), self.document.get("expect", {}))
        default_power = self.power_name(("fleet",), fleet, power, "wol")
        found: list[Duck] = []
        seen: dict[str, str] = {}
        for path, table in self.tables("ducks"):
            duck = self.duck(path, table, domains, power, default_power, common)
            if duck is None:
                continue
            for key, value in (("mac", duck.mac), ("address", duck.address), ("name", duck.name)):
                if value in seen and key in table:
                    self.complain((*path, key), table.get(key, value), f"is taken by {seen[value]}")
            for value in (duck.mac, duck.address, duck.name):
                seen.setdefault(value, f"duck {duck.name!r} (line {line_of(self.lines, path)})")
            found.append(duck)
        return sorted(found, key=lambda duck: ipaddress.IPv4Address(duck.address))

    def power_name(self, path: KeyPath, table: dict[str, Any], power: list[PowerSource], default: str) -> str:
        name = self.get(path, table, "power", str, default)
        if name not in {source.name for source in power}:
            known = ", ".join(source.name for source in power)
            self.complain((*path, "power"), name, f"no such power source; known: {known}")
        return name

    def duck(
        self,
        path: KeyPath,
        table: dict[str, Any],
        domains: list[Domain],
        power: list[PowerSource],
        default_power: str,
        common: Expectations,
    ) -> Duck | None:
        before = len(self.complaints)
        mac_text = self.get(path, table, "mac", str)
        address_text = self.get(path, table, "address", str)
        if len(self.complaints) > before:
            return None
        mac = self.parse((*path, "mac"), mac_text, parse_mac)
        address = self.parse((*path, "address"), address_text, ipaddress.IPv4Address)
        secure_on = self.get(path, table, "secure_on", str, "")
        password = self.parse((*path, "secure_on"), secure_on, normalise_octets) if secure_on else ""
        name = self.get(path, table, "name", str, address_text)
        if not name or name != name.strip() or name[0] in "@-" or set(name) & set("[],/ "):
            self.complain((*path, "name"), name, "must be a plain name: no spaces, commas, slashes, brackets or '@'")
        home = next((domain for domain in domains if str(address) in domain.addresses), None)
        if address is not None and home is None and self.domains_are_sound:
            known = ", ".join(f"{domain.name} ({domain.network})" for domain in domains) or "none is stated"
            self.complain((*path, "address"), address_text, f"is not a node of any domain; domains: {known}")
        if mac is None or address is None or home is None:
            return None
        return Duck(
            mac,
            name,
            str(address),
            home.name,
            self.get(path, table, "rack", str, ""),
            self.get(path, table, "notes", str, ""),
            self.power_name(path, table, power, default_power),
            self.get(path, table, "outlet", str, ""),
            password or "",
            common.overridden_by(self.expectations((*path, "expect"), table.get("expect", {}))),
            self.get(path, table, "switch_port", str, ""),
        )


_TYPE_NAMES: dict[type, str] = {str: "a text", int: "a whole number", float: "a number", dict: "a table"}
