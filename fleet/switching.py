"""Switch ducks off, or restart them. Nothing meant for a duck may run on this host: each way below proves where it is.

* A duck whose address is this host's own is a process of a lab: only its daemon is told to end, by the control plane.
* Elsewhere ssh is tried: the remote kernel's boot id must differ from ours, and the command sent checks that again
  itself, so that it does nothing where it should not, whoever answered.
* Then the duck's power source (a plug): it acts on an outlet, not on a machine.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet import lifecycle
from duckfleet.fleet.errors import DuckUnreachable, PowerError, PowerUnsupported
from duckfleet.fleet.lab.ownership import boot_id
from duckfleet.fleet.power.drivers import power_of
from duckfleet.fleet.power.person import Ask, nobody
from duckfleet.fleet.reach import connect, identify, on_all, told_host_key
from duckfleet.fleet.shell import DuckShell
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Store
from duckfleet.runtime.wire import FleetKeys

ACTIONS = {"off": "poweroff", "reboot": "reboot"}
SILENCE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """What was done about one duck."""

    duck: Duck
    ok: bool
    detail: str


class Switch:
    """Switches ducks of one site off and on again."""

    def __init__(
        self,
        site: Site,
        store: Store,
        keys: FleetKeys | None,
        ssh_dir: Path,
        *,
        is_ours: Callable[[str], bool] | None = None,
        ask: Ask = nobody,
    ) -> None:
        self.site = site
        self.store = store
        self.keys = keys
        self.ssh_dir = ssh_dir
        self.ask = ask
        self.is_ours = is_ours or is_own_address

    def switch(self, ducks: Sequence[Duck], action: str, *, by: str = "auto") -> list[SwitchResult]:
        """`off` or `reboot` for all ducks at once. `by`: auto, control, ssh or power."""
        results: dict[str, SwitchResult] = {}
        for duck, answer in on_all(ducks, lambda duck: self._one(duck, action, by)):
            ok = not isinstance(answer, MachineError)
            results[duck.mac] = SwitchResult(duck, ok, str(answer))
            if not ok:
                self.store.log(f"{action}_failed", {"error": str(answer)}, duck)
        return [results[duck.mac] for duck in ducks]

    def _one(self, duck: Duck, action: str, by: str) -> str:
        if self.is_ours(duck.address):
            if by not in ("auto", "control"):
                raise DuckUnreachable(
                    f"duck {duck.name}: {duck.address} is this host's own address, so nothing but its daemon may be "
                    f"ended there; leave --by out"
                )
            return self._end_daemon(duck, action)
        if by == "control":
            return self._end_daemon(duck, action)
        refusals = []
        if by in ("auto", "ssh"):
            try:
                return self._by_ssh(duck, action)
            except MachineError as error:
                refusals.append(str(error))
        if by in ("auto", "power"):
            try:
                return self._by_power(duck, action)
            except (PowerError, PowerUnsupported) as error:
                refusals.append(str(error))
        raise PowerError("; ".join(refusals))

    def _end_daemon(self, duck: Duck, action: str) -> str:
        with connect(self.site, duck, self.keys) as client:
            client.shutdown()
        until = time.monotonic() + SILENCE_TIMEOUT_S
        while self._answers(duck):
            if time.monotonic() > until:
                raise DuckUnreachable(f"duck {duck.name} was told to end its daemon but still answers")
            time.sleep(0.05)
        self._took(duck, "power_cut", {"by": "control"})
        if action == "off":
            return "its daemon has ended"
        evidence = power_of(self.site, duck, ask=self.ask).on(duck, self.site.domain(duck.domain))
        self._took(duck, "wake_sent", evidence)
        return "its daemon has ended, and it was told to start"

    def _by_ssh(self, duck: Duck, action: str) -> str:
        ours = boot_id()
        with DuckShell(duck, self.ssh_dir, host_key=told_host_key(self.site, duck, self.keys)) as shell:
            theirs = shell.run("cat /proc/sys/kernel/random/boot_id").strip()
            if theirs == ours or not theirs:
                raise PowerError(
                    f"duck {duck.name}: what answers ssh at {duck.address} runs on this host's own kernel; "
                    f"it was not told to {ACTIONS[action]}"
                )
            shell.start(guarded(ACTIONS[action], ours))
        self._took(duck, "power_cut" if action == "off" else "reboot_sent", {"by": "ssh", "boot_id": theirs})
        return f"told to {ACTIONS[action]} by ssh"

    def _by_power(self, duck: Duck, action: str) -> str:
        driver = power_of(self.site, duck, ask=self.ask)
        domain = self.site.domain(duck.domain)
        evidence = driver.off(duck, domain) if action == "off" else driver.cycle(duck, domain)
        self._took(duck, "power_cut" if action == "off" else "reboot_sent", evidence)
        return f"its power source [{duck.power}] did it"

    def _answers(self, duck: Duck) -> bool:
        try:
            identify(self.site, duck, self.keys, 0.5)
        except MachineError:
            return False
        return True

    def _took(self, duck: Duck, event: str, evidence: object) -> None:
        assert isinstance(evidence, dict)
        self.store.transition(duck, event, evidence, lifecycle.next_state, restart=event != "power_cut")


def guarded(command: str, host_boot_id: str) -> str:
    """A shell command that runs `command` only on another kernel than the one whose boot id this is."""
    here = "/proc/sys/kernel/random/boot_id"
    return f'test -r {here} && test "$(cat {here})" != {shlex.quote(host_boot_id)} && exec {command}'


def is_own_address(address: str) -> bool:
    """Whether this host itself has the address (all of 127.0.0.0/8 is its own)."""
    import ipaddress
    import socket

    import psutil

    if ipaddress.IPv4Address(address).is_loopback:
        return True
    return any(
        item.family == socket.AF_INET and item.address == address
        for items in psutil.net_if_addrs().values()
        for item in items
    )
