"""The one seam that decides what a machine boots, and the file in which a person says otherwise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import BootClient

POLICY_VERSION = 1
DEFAULT_ISOLATED_CPUS = "1-3"


@dataclass(frozen=True, slots=True)
class DuckImage:
    """The fleet's own image; an empty id means the current one. `arguments` go on the kernel's command line."""

    image_id: str = ""
    isolated_cpus: str = DEFAULT_ISOLATED_CPUS
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Memtest:
    """memtest86+, until somebody stops it."""


@dataclass(frozen=True, slots=True)
class LocalDisk:
    """Whatever the firmware would boot if there were no network."""


@dataclass(frozen=True, slots=True)
class LinuxKernel:
    """Any kernel with the Linux boot protocol. `command_line` knows {name} {mac} {address} {host}."""

    kernel: Path
    initrds: tuple[Path, ...] = ()
    command_line: str = ""


@dataclass(frozen=True, slots=True)
class Multiboot2:
    """Any multiboot2 image, such as JudgeDuck-OS. `command_line` knows {name} {mac} {address} {host}."""

    kernel: Path
    command_line: str = ""


BootChoice = DuckImage | Memtest | LocalDisk | LinuxKernel | Multiboot2
_KINDS: dict[str, type[BootChoice]] = {
    "duck": DuckImage,
    "memtest": Memtest,
    "disk": LocalDisk,
    "linux": LinuxKernel,
    "multiboot2": Multiboot2,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What each machine boots: its own choice if it has one, else the fleet's."""

    default: BootChoice = field(default_factory=DuckImage)
    by_mac: Mapping[str, BootChoice] = field(default_factory=dict)

    def decide(self, client: BootClient) -> BootChoice:
        return self.by_mac.get(client.mac, self.default)

    def changed(self, macs: tuple[str, ...], choice: BootChoice | None) -> Policy:
        """The policy with another choice for these machines; None gives them back to the default."""
        by_mac = {mac: old for mac, old in self.by_mac.items() if mac not in macs}
        if choice is not None:
            by_mac.update(dict.fromkeys(macs, choice))
        return Policy(self.default, by_mac)


def describe(choice: BootChoice) -> str:
    """A choice in a few words."""
    match choice:
        case DuckImage(image_id=image_id):
            return f"duck image {image_id or '(current)'}"
        case Memtest():
            return "memtest86+"
        case LocalDisk():
            return "local disk"
        case LinuxKernel(kernel=kernel):
            return f"kernel {kernel}"
        case Multiboot2(kernel=kernel):
            return f"multiboot2 {kernel}"


def command_line(template: str, client: BootClient, host_address: str) -> str:
    """A command line for one machine. Raises `OperatorError` for a placeholder that means nothing."""
    values = {"name": client.label, "mac": client.mac, "address": client.address, "host": host_address}
    try:
        for _, name, _, _ in Formatter().parse(template):
            if name is not None and name not in values:
                raise ValueError(f"{{{name}}}")
        return template.format_map(values)
    except ValueError as error:
        known = " ".join(f"{{{name}}}" for name in values)
        raise OperatorError(f"command line {template!r}: {error} is none of {known}") from error


class PolicyFile:
    """The policy on disk. Read at every boot, so that a change needs no restart."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Policy:
        """Raises `OperatorError` when the file is there and cannot be understood."""
        try:
            document = json.loads(self.path.read_text())
        except FileNotFoundError:
            return Policy()
        except (OSError, ValueError) as error:
            raise OperatorError(f"{self.path} cannot be read: {error}") from error
        try:
            if document["version"] != POLICY_VERSION:
                raise ValueError(f"version {document['version']} is not {POLICY_VERSION}")
            by_mac = {mac: _from_json(entry) for mac, entry in document["by_mac"].items()}
            return Policy(_from_json(document["default"]), by_mac)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise OperatorError(f"{self.path} is not a boot policy ({error!r}); delete it to start over") from error

    def save(self, policy: Policy) -> None:
        document = {
            "version": POLICY_VERSION,
            "default": _to_json(policy.default),
            "by_mac": {mac: _to_json(choice) for mac, choice in sorted(policy.by_mac.items())},
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.new")
        draft.write_text(json.dumps(document, indent=2) + "\n")
        draft.replace(self.path)


def _to_json(choice: BootChoice) -> dict[str, Any]:
    kind = next(kind for kind, made in _KINDS.items() if isinstance(choice, made))
    entry: dict[str, Any] = {"kind": kind}
    for name in choice.__slots__:
        value = getattr(choice, name)
        entry[name] = [str(path) for path in value] if isinstance(value, tuple) else str(value)
    return entry


def _from_json(entry: dict[str, Any]) -> BootChoice:
    fields = dict(entry)
    made = _KINDS[fields.pop("kind")]
    if "kernel" in fields:
        fields["kernel"] = Path(fields["kernel"])
    if "initrds" in fields:
        fields["initrds"] = tuple(Path(path) for path in fields["initrds"])
    return made(**fields)
