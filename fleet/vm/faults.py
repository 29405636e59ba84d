"""Faults that a lab can give a virtual duck: what each does to the machine or to its cable. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from duckfleet.inventory.errors import OperatorError

FAULTS = {
    "dead_cmos": "battery dead, settings lost: starts, stops at its setup prompt, never asks for DHCP; clock at 2000",
    "bad_pxe_order": "does not boot from the network: starts, looks for a disk, never asks for DHCP",
    "default_rtc": "battery dead, but its settings' defaults boot from the network: comes up with its clock at 2000",
    "no_wol": "does not hear magic packets",
    "missing_dimm": "the second memory module is not seated",
    "slow_link": "the cable carries 100 Mbit/s",
    "lossy_link": "the cable loses 5 % of the frames, both ways",
    "slow_cpu": "the CPU runs at a quarter of its speed",
}
DEFAULT_RTC = "2000-01-01T00:00:00"
SLOW_LINK_MBPS = 100
LOSS_PERCENT = 5
ICOUNT_SHIFT, SLOW_ICOUNT_SHIFT = 2, 4
"""An instruction takes 2^shift ns of the duck's time, whatever else this machine does (QEMU, -icount)."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The faults of one duck, as properties of the machine."""

    faults: frozenset[str] = frozenset()

    @property
    def hears_magic_packets(self) -> bool:
        return "no_wol" not in self.faults

    @property
    def boots_from_network(self) -> bool:
        return not self.faults & {"dead_cmos", "bad_pxe_order"}

    @property
    def rtc_base(self) -> str | None:
        """Where its clock starts; None: the right time."""
        return DEFAULT_RTC if self.faults & {"dead_cmos", "default_rtc"} else None

    @property
    def num_modules(self) -> int:
        return 1 if "missing_dimm" in self.faults else 2

    @property
    def icount_shift(self) -> int:
        return SLOW_ICOUNT_SHIFT if "slow_cpu" in self.faults else ICOUNT_SHIFT

    def link_mbps(self, healthy_mbps: int) -> int:
        return SLOW_LINK_MBPS if "slow_link" in self.faults else healthy_mbps


def check_fault(name: str) -> str:
    """The name, if it is one. Raises `OperatorError`."""
    if name not in FAULTS:
        raise OperatorError(f"no fault {name!r}; there are {', '.join(FAULTS)}")
    return name


def cable_commands(tap: str, faults: Iterable[str]) -> list[tuple[list[str], str]]:
    """Commands (and their input) that make a duck's cable as its faults say, whatever it was before.

    To the duck a token bucket (tc), from it a rate limit (nft): a tap has no queue in that direction.
    """
    faults = frozenset(faults)
    table = f"cable-{tap}"
    rules = [f"add table netdev {table}", f"delete table netdev {table}"]
    if faults & {"slow_link", "lossy_link"}:
        rules += [f"add table netdev {table}"]
        for hook, name in (("ingress", "from"), ("egress", "to")):
            rules += [f'add chain netdev {table} {name} {{ type filter hook {hook} device "{tap}" priority 0; }}']
            if "lossy_link" in faults:
                rules += [f"add rule netdev {table} {name} numgen random mod 100 < {LOSS_PERCENT} drop"]
        if "slow_link" in faults:
            rate = SLOW_LINK_MBPS * 1000 // 8
            rules += [f"add rule netdev {table} from limit rate over {rate} kbytes/second burst 64 kbytes drop"]
    commands = [(["nft", "-f", "-"], "\n".join(rules) + "\n")]
    if "slow_link" in faults:
        shape = ["tbf", "rate", f"{SLOW_LINK_MBPS}mbit", "burst", "64kb", "latency", "50ms"]
        commands.append((["tc", "qdisc", "replace", "dev", tap, "root", *shape], ""))
    else:
        commands.append((["tc", "qdisc", "replace", "dev", tap, "root", "pfifo_fast"], ""))
    return commands
