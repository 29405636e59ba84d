"""Ansible's inventory of a site: groups, addresses and ssh options. Pure.

A duck is reached by ssh with the fleet's key, and only under the host key that was pinned for it; the host only from
itself. Ducks at one of this host's own addresses are left out: what is meant for a duck would run here. Words of the
site file are told as words: Ansible evaluates none of them as a template.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckfleet.fleet.shell import KNOWN_HOSTS
from duckfleet.fleet.trust import SSH_KEY_FILE
from duckfleet.inventory.site import Duck, Site

DUCK_GROUP, HOST_GROUP = "ducks", "fleet_host"
HOST_NAME = "localhost"
CONNECT_TIMEOUT_S = 15
ALIVE_S, ALIVE_TRIES = 15, 6
"""Seconds between questions whether a duck is still there, and how many of them in a row it may leave unanswered."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Inventory:
    """What Ansible is told of a site."""

    site: Site
    ducks: tuple[Duck, ...]
    keys_dir: Path
    host_boot_id: str
    python: str  # the host's interpreter
    has_host: bool = True

    def dynamic(self) -> dict[str, Any]:
        """As `ansible-inventory` wants it of a script that is called with `--list`."""
        hostvars = {host_name(duck): self.duck_variables(duck) for duck in self.ducks}
        groups: dict[str, Any] = {
            "all": {"vars": self.variables},
            DUCK_GROUP: {"children": list(self._domains()), "vars": self.ssh_variables},
        }
        for group, ducks in self._domains().items():
            groups[group] = {"hosts": [host_name(duck) for duck in ducks]}
        if self.has_host:
            hostvars[HOST_NAME] = self.host_variables
            groups[HOST_GROUP] = {"hosts": [HOST_NAME]}
        told: dict[str, Any] = literal({"_meta": {"hostvars": hostvars}, **groups})
        return told

    def static(self) -> dict[str, Any]:
        """The same, as Ansible reads it from a JSON file."""
        children: dict[str, Any] = {}
        if self.ducks:
            children[DUCK_GROUP] = {
                "vars": self.ssh_variables,
                "children": {
                    group: {"hosts": {host_name(duck): self.duck_variables(duck) for duck in ducks}}
                    for group, ducks in self._domains().items()
                },
            }
        if self.has_host:
            children[HOST_GROUP] = {"hosts": {HOST_NAME: self.host_variables}}
        told: dict[str, Any] = literal({"all": {"vars": self.variables, "children": children}})
        return told

    def variables_of(self, name: str) -> dict[str, Any]:
        """As a script answers `--host NAME`; empty for a name that is none."""
        found: dict[str, Any] = self.dynamic()["_meta"]["hostvars"].get(name, {})
        return found

    @property
    def variables(self) -> dict[str, Any]:
        """Of everything: by this the roles tell the host from a duck."""
        return {"duckfleet_host_boot_id": self.host_boot_id, "duckfleet_site": self.site.name}

    @property
    def ssh_variables(self) -> dict[str, Any]:
        known_hosts = self.keys_dir / KNOWN_HOSTS
        options = (
            f'UserKnownHostsFile="{known_hosts}"',
            "GlobalKnownHostsFile=/dev/null",
            "StrictHostKeyChecking=yes",
            "UpdateHostKeys=no",
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "PasswordAuthentication=no",
            "KbdInteractiveAuthentication=no",
            f"ConnectTimeout={CONNECT_TIMEOUT_S}",
            # A duck that dies in the middle of a task closes nothing: without questions ssh would wait for hours.
            f"ServerAliveInterval={ALIVE_S}",
            f"ServerAliveCountMax={ALIVE_TRIES}",
        )
        return {
            "ansible_connection": "ssh",
            "ansible_user": "root",
            "ansible_host_key_checking": True,
            "ansible_ssh_private_key_file": str(self.keys_dir / SSH_KEY_FILE),
            # -F: what this user's ssh is used to do elsewhere does not count here.
            "ansible_ssh_common_args": " ".join(["-F /dev/null", *(f"-o {shlex.quote(item)}" for item in options)]),
            "ansible_ssh_transfer_method": "piped",  # our boot image has neither sftp nor scp
        }

    @property
    def host_variables(self) -> dict[str, Any]:
        return {
            "ansible_connection": "local",
            "ansible_python_interpreter": self.python,
            "host_interfaces": [domain.interface for domain in self.site.domains],
        }

    def duck_variables(self, duck: Duck) -> dict[str, Any]:
        domain = self.site.domain(duck.domain)
        return {
            "ansible_host": duck.address,
            "duck_name": duck.name,
            "duck_mac": duck.mac,
            "duck_rack": duck.rack,
            "duck_domain": domain.name,
            "duck_broadcast": domain.broadcast,
            "duck_control_port": domain.control_port,
            "duck_data_port": domain.data_port,
        }

    def _domains(self) -> dict[str, list[Duck]]:
        """The domains with ducks, by the name of their group."""
        groups: dict[str, list[Duck]] = {}
        for number, domain in enumerate(self.site.domains, 1):
            members = [duck for duck in self.ducks if duck.domain == domain.name]
            if members:
                name = "domain_" + re.sub(r"\W", "_", domain.name, flags=re.ASCII)
                groups[name if name not in groups else f"{name}_{number}"] = members
        return groups


def literal(value: Any) -> Any:
    """A value for a JSON file that Ansible reads, in which no text is a template, whatever braces it has.

    By the mark that Ansible itself writes for such texts; only where it is needed, so that the rest stays readable.
    """
    if isinstance(value, str):
        return {"__ansible_unsafe": value} if "{" in value else value
    if isinstance(value, Mapping):
        return {key: literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    return value


def host_name(duck: Duck) -> str:
    """What Ansible calls a duck: its name, or its address where Ansible would read something else in the name."""
    is_plain = _PLAIN_NAME.fullmatch(duck.name) and duck.name not in (HOST_NAME, "all", "ungrouped")
    return duck.name if is_plain else duck.address


def by_host_name(ducks: Sequence[Duck]) -> dict[str, Duck]:
    return {host_name(duck): duck for duck in ducks}
