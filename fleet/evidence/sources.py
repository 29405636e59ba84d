"""Pluggable sources of outside evidence, by the driver names of the site file. Each looks at one duck, in bounded time.

What a source gives is a part of the object that `diagnosis.sources.around.outside` reads: `switch`, `plug`, or both.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from duckfleet.fleet.diagnosis.case import STANDBY_LINK_MBPS
from duckfleet.fleet.templates import fill
from duckfleet.inventory.errors import DuckfleetError, MachineError
from duckfleet.inventory.site import Domain, Duck, EvidenceSource

Part = Mapping[str, Any]
Look = Callable[[EvidenceSource, Duck, Domain], Part]
MAX_ANSWER_BYTES = 1 << 20
LAB_ON_W, LAB_STANDBY_W = 9.0, 1.2
"""What a virtual duck's plug reads: a box of this class draws about that when it runs, and when it waits."""


class EvidenceError(MachineError):
    """A source said nothing usable: that is unknown, and says nothing of the duck."""


def look_at(source: EvidenceSource, duck: Duck, domain: Domain) -> Part:
    """What the source says. Raises `EvidenceError` naming the source."""
    try:
        return DRIVERS[source.driver](source, duck, domain)
    except EvidenceError as error:
        raise EvidenceError(f"[evidence.{source.name}] of duck {duck.name}: {error}") from error
    except (OSError, ValueError, LookupError, DuckfleetError) as error:
        raise EvidenceError(f"[evidence.{source.name}] of duck {duck.name}: {error or type(error).__name__}") from error


def by_command(source: EvidenceSource, duck: Duck, domain: Domain) -> Part:
    """A command of the operator's, without a shell: it prints the JSON object."""
    words = shlex.split(fill(source.target, duck, domain, shlex.quote))
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=source.timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise EvidenceError(f"`{words[0]}` did not end in {source.timeout_s:g} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        raise EvidenceError(f"`{words[0]}` ended with {done.returncode}: {last}")
    return _object(done.stdout)


def by_http(source: EvidenceSource, duck: Duck, domain: Domain) -> Part:
    """A smart plug's own JSON; `watts` and `relay` say where in it the values are, as `StatusSNS.ENERGY.Power`."""
    import httpx

    url = fill(source.target, duck, domain, lambda value: quote(value, safe=""))
    try:
        with httpx.Client(timeout=source.timeout_s, trust_env=False) as client:
            answer = client.get(url)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EvidenceError(f"{url}: {str(error) or type(error).__name__}") from error
    if not answer.is_success:
        raise EvidenceError(f"{url}: answered {answer.status_code}")
    fields = _object(answer.text)
    if not source.watts and not source.relay:
        return fields
    watts, relay = _inner(fields, source.watts), _inner(fields, source.relay)
    plug: dict[str, Any] = {"at": datetime.now(UTC).isoformat()}
    if isinstance(watts, int | float) and not isinstance(watts, bool):
        plug["watts"] = watts
    if relay is not None:
        plug["relay"] = "on" if relay in (True, 1, "on", "ON") else "off"
    if len(plug) == 1:
        raise EvidenceError(f"{url}: has neither {source.watts or 'watts'} nor {source.relay or 'a relay'}")
    return {"plug": plug}


def by_snmp(source: EvidenceSource, duck: Duck, domain: Domain) -> Part:
    """The duck's port of a managed switch; `switch_port` of the duck is its interface index there."""
    from duckfleet.fleet.evidence.snmp import read_port

    if not duck.switch_port.isdigit():
        raise EvidenceError(f"switch_port = {duck.switch_port!r} of the duck is no interface index")
    host = fill(source.target, duck, domain)
    return {"switch": read_port(host, int(duck.switch_port), source.community, source.timeout_s)}


def by_vm_lab(source: EvidenceSource, duck: Duck, _domain: Domain) -> Part:
    """The "switch" and the "power strip" of a lab of virtual machines."""
    from duckfleet.fleet.vm import lab
    from duckfleet.fleet.vm.plan import LINK_MBPS

    for port in lab.ports(Path(source.target)):
        if port.mac == duck.mac:
            now = datetime.now(UTC)
            since = datetime.fromtimestamp(port.powered_at_s, UTC) if port.powered_at_s else None
            # A card of a box that is off keeps a slow link while it waits for its packet.
            speed_mbps = port.link_mbps if port.powered else STANDBY_LINK_MBPS
            switch = {"port": port.name, "port_up": speed_mbps > 0, "speed_mbps": speed_mbps, "max_mbps": LINK_MBPS}
            switch |= {"admin_up": True, "since": since.isoformat() if since else None}
            watts = LAB_ON_W if port.powered else LAB_STANDBY_W
            return {"switch": switch, "plug": {"watts": watts, "relay": "on", "at": now.isoformat()}}
    raise EvidenceError("the lab has no such duck")


DRIVERS: dict[str, Look] = {"command": by_command, "http": by_http, "snmp": by_snmp, "vm-lab": by_vm_lab}


def _object(text: str) -> Part:
    if len(text) > MAX_ANSWER_BYTES:
        raise EvidenceError("answered too much")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise EvidenceError(f"answered no JSON object: {text.strip()[:60]!r}")
    return value


def _inner(fields: Any, path: str) -> Any:
    for key in path.split(".") if path else ():
        fields = fields.get(key) if isinstance(fields, Mapping) else None
    return fields if path else None
