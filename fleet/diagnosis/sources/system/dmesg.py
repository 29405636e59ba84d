"""The kernel's log, also as received by netconsole: lines that mean something, by kind. The rest is noise.

Driver messages name the place; only what happens to the duck's own devices and daemon counts. Messages that alarm and
mean nothing (ACPI name errors, corrected PCIe errors, EDAC's "HANDLING" without a counted error) have no kind here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.sources.memory.mce import MachineCheck, records
from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

MARKS: tuple[tuple[str, str], ...] = (
    ("heat_shutdown", r"critical temperature reached|HARDWARE PROTECTION shutdown \(Temp|thermal.*shutting down"),
    ("heat_throttle", r"temperature (?:is )?above threshold, cpu clock (?:is )?throttled"),
    ("no_root", r"VFS: Unable to mount root fs|VFS: Cannot open root device|Initramfs unpacking failed"),
    ("no_init", r"No working init found|Attempted to kill init|Failed to execute /init"),
    ("lockup", r"(?:soft|hard) lockup|NMI watchdog: Watchdog detected|self-detected stall|detected stalls on CPUs"),
    ("hung_task", r"task \S+ blocked for more than [0-9]+ seconds"),
    ("panic", r"Kernel panic - not syncing"),
    ("oops", r"BUG: unable to handle|Oops: |general protection fault, |kernel BUG at|BUG: kernel NULL pointer"),
    ("nic_lost", r"PCIe link lost, device now detached|Failed to read reg 0x|rtl_\w+_cond == [01] \(loop"),
    ("nic_lost", r"pciehp.*Card not present"),
    ("nic_not_started", r"probe (?:with driver \S+ )?(?:of \S+ )?failed with error|NVM Checksum Is Not Valid"),
    ("nic_not_started", r"device inaccessible|Refused to change power state|can't change power state from D3cold"),
    ("nic_stuck", r"Detected Tx Unit Hang|NETDEV WATCHDOG|transmit queue [0-9]+ timed out|Reset adapter"),
    ("nic_bus_error", r"PCIe Bus Error: severity=Uncorrect|AER: (?:Multiple )?Uncorrect|AER: Fatal error"),
    ("nic_bus_narrow", r"[0-9.]+ Gb/s available PCIe bandwidth, limited by"),
    ("wire_downgraded", r"downgraded by SmartSpeed|Downshift occurred|check cabling"),
    ("link_up", r"Link is Up\b"),
    ("link_down", r"NIC Link is Down|: Link is Down"),
    ("memory_killed_daemon", r"Out of memory: Killed process [0-9]+ \(duckd\)|task=duckd"),
    ("daemon_crashed", r"\bduckd\[[0-9]+\]: segfault|traps: duckd|duckd\.service: (?:Main process exited|Failed with)"),
    ("daemon_gives_up", r"duckd\.service: Start request repeated too quickly"),
    ("no_space", r"No space left on device"),
    ("memory_corrected", r"EDAC MC[0-9]+: [0-9]+ CE "),
    ("memory_uncorrected", r"EDAC MC[0-9]+: [0-9]+ UE |Memory failure: 0x[0-9a-f]+: recovery action"),
    ("clock_jumped", r"Time jumped backwards|Time has been changed|clocksource: .*unstable"),
    ("disk_failing", r"I/O error, dev (?:nvme|sd|mmc)|nvme.*controller is down|Remounting filesystem read-only"),
    ("prochot", r"PROCHOT"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in MARKS)
NETWORK_DRIVERS = ("igc", "r8169", "RTL8", "r8125", "e1000")
_NIC_KINDS = ("nic_not_started", "nic_bus_error", "nic_bus_narrow")


@dataclass(frozen=True, slots=True)
class KernelMark:
    kind: str  # of MARKS
    since_boot_s: float | None
    line: str


@dataclass(frozen=True, slots=True)
class KernelLog:
    marks: tuple[KernelMark, ...]
    machine_checks: tuple[MachineCheck, ...] = ()

    @property
    def link_mbps(self) -> int | None:
        """The speed that the last link came up with; None where it went down since, or the log does not say."""
        changes = self.of("link_up", "link_down")
        speed = re.search(r"\b([0-9]{1,5}(?:\.5)?) ?([MG])bps", changes[-1].line) if changes else None
        return round(float(speed[1]) * (1000 if speed[2] == "G" else 1)) if speed else None

    def of(self, *kinds: str) -> tuple[KernelMark, ...]:
        return tuple(mark for mark in self.marks if mark.kind in kinds)


def parse(text: str) -> KernelLog:
    """Raises `Unreadable` when no line looks like the kernel's."""
    stamped = [
        re.match(r"(?:<[0-9]+>)?\[\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\](?:\[[^\]]*\])? ?(.*)", line)
        for line in text.splitlines()
    ]
    if not any(stamped):
        raise not_an_answer(text)
    network_devices = _network_devices(text)
    marks = []
    for match in stamped:
        if match is None:
            continue
        for kind, pattern in _COMPILED:
            if pattern.search(match[2]) and not (kind in _NIC_KINDS and not _is_nic(match[2], network_devices)):
                marks.append(KernelMark(kind, float(match[1]), match[2].strip()))
                break
    return KernelLog(tuple(marks), records(text))


def _network_devices(text: str) -> frozenset[str]:
    """PCI addresses that a network driver names."""
    drivers = "|".join(map(re.escape, NETWORK_DRIVERS))
    return frozenset(re.findall(rf"(?:{drivers})\S* (0000:[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-9a-f])", text))


def _is_nic(line: str, devices: frozenset[str]) -> bool:
    return line.startswith(NETWORK_DRIVERS) or any(device in line for device in devices)
