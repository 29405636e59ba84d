"""The kernel's log, also as received by netconsole: lines that mean something, by kind. The rest is noise.

Driver messages name the place; only what happens to the duck's own devices and daemon counts. Messages that alarm and
mean nothing (ACPI name errors, corrected PCIe errors, EDAC's "HANDLING" without a counted error) have no kind here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from duckfleet.fleet.diagnosis.sources.memory.mce import MachineCheck, records
from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer

MARKS: tuple[tuple[str, str], ...] = (
    ("heat_shutdown", r"critical temperature reached|HARDWARE PROTECTION shutdown \(Temp|thermal.*shutting down"),
    ("heat_throttle", r"temperature (?:is )?above threshold, cpu clock (?:is )?throttled"),
    ("memory_uncorrected", r"Fatal (?:local )?machine check.*memory"),
    ("no_root", r"VFS: Unable to mount root fs|VFS: Cannot open root device|Initramfs unpacking failed"),
    ("no_root", r"Gave up waiting for root|dracut-initqueue.*timeout|Failed to (?:start )?switch root"),
    ("no_root", r"SQUASHFS error|invalid magic at start of compressed|(?:junk|no cpio magic).*compressed archive"),
    ("no_init", r"No working init found|Attempted to kill init|Failed to execute /\S*init"),
    ("lockup", r"(?:soft|hard|workqueue) lockup|Watchdog detected|self-detected stall|detected stalls on CPUs"),
    ("lockup", r"rcu_\w+ kthread (?:starved|timer wakeup)"),
    ("hung_task", r"task \S+ blocked for more than [0-9]+ seconds"),
    ("panic", r"Kernel panic - not syncing"),
    ("oops", r"BUG: unable to handle|Oops: |general protection fault[,:] |kernel BUG at|BUG: kernel NULL pointer"),
    ("oops", r"(?:invalid opcode|divide error|stack segment|double fault): [0-9]+|\[#[0-9]+\] (?:PREEMPT|SMP)"),
    ("nic_lost", r"PCIe link lost, device now detached|Failed to read reg 0x|rtl_\w+_cond == [01] \(loop"),
    ("nic_lost", r"pciehp.*Card not present"),
    ("nic_not_started", r"probe (?:with driver \S+ )?(?:of \S+ )?failed with error|NVM Checksum Is Not Valid"),
    ("nic_not_started", r"device inaccessible|Refused to change power state|can't change power state from D3cold"),
    ("nic_not_started", r"(?:HW|Hardware) Initialization Fail|not ready [0-9]+ms after|Error reading PHY register"),
    ("nic_not_started", r"Error: Failed to (?:initialize|power on|reset)|PHY (?:setup|reset) fail|no PHY found"),
    ("nic_stuck", r"Detected (?:Tx|Hardware) Unit Hang|NETDEV WATCHDOG|transmit queue [0-9]+ timed out|Reset adapter"),
    ("nic_bus_error", r"PCIe Bus Error: severity=Uncorrect|AER: (?:Multiple )?Uncorrect|AER: Fatal error"),
    ("nic_bus_narrow", r"[0-9.]+ Gb/s available PCIe bandwidth, limited by"),
    ("wire_downgraded", r"downgraded by SmartSpeed|Downshift|downshifted|check (?:the )?cabl"),
    ("link_up", r"Link is Up\b|\beth\w*: link up\b|\ben\w+: link up\b"),
    ("link_down", r"NIC Link is Down|: Link is Down|\be(?:th|n)\w+: link down\b"),
    ("memory_killed_daemon", r"Out of memory: Kill(?:ed)? process [0-9]+ \(duckd[^)]*\)|task=duckd"),
    ("memory_killed_daemon", r"oom_reaper: reaped process [0-9]+ \(duckd|duckd\.service: .*OOM killer"),
    ("daemon_crashed", r"\bduckd[\w/.:-]*\[[0-9]+\]: segfault|traps: duckd|Process [0-9]+ \(duckd\).* dumped core"),
    ("daemon_crashed", r"duckd\.service: (?:Main process exited|Failed with|Watchdog timeout)"),
    ("daemon_crashed", r"\bduckd\S*: error while loading shared libraries"),
    ("daemon_gives_up", r"duckd\.service: Start request repeated too quickly"),
    ("no_space", r"No space left on device|\bENOSPC\b|Disk quota exceeded"),
    ("memory_corrected", r"EDAC MC[0-9]+: [0-9]+ CE "),
    ("memory_uncorrected", r"EDAC MC[0-9]+: [0-9]+ UE |Memory failure: 0x[0-9a-f]+: |hardware memory error in"),
    ("memory_uncorrected", r"\bbad mem addr\b"),
    ("clock_set_at_boot", r"setting system clock to [0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{8} UTC"),
    ("clock_jumped", r"Time jumped backwards|Time has been changed|clocksource: .*unstable"),
    ("disk_failing", r"I/O error, dev (?:nvme|sd|mmc)|nvme.*controller is down|Remounting filesystem read-only"),
    ("disk_failing", r"EXT4-fs error|nvme\w*: I/O .*timeout|ata[0-9.]+: failed command"),
    ("prochot", r"PROCHOT"),
)  # fmt: skip
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in MARKS)
NETWORK_DRIVERS = ("igc", "r8169", "RTL8", "r8125", "r8168", "e1000", "igb", "ixgbe", "i40e", "atlantic", "tg3", "alx")
BOOT_LASTS_S = 300.0
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

    @property
    def clock_at_boot(self) -> datetime | None:
        """What the kernel read from the RTC, before anything set it."""
        marks = self.of("clock_set_at_boot")
        found = re.search(r"([0-9]{4}-[0-9-]{5})[T ]([0-9:]{8}) UTC", marks[-1].line) if marks else None
        return moment(f"{found[1]}T{found[2]}") if found else None

    def of(self, *kinds: str) -> tuple[KernelMark, ...]:
        return tuple(mark for mark in self.marks if mark.kind in kinds)


def parse(text: str) -> KernelLog:
    """Raises `Unreadable` when no line looks like the kernel's."""
    stamped = [_stamped(line) for line in text.splitlines()]
    if not any(stamped):
        raise not_an_answer(text)
    network_devices = _network_devices(text)
    marks = []
    for stamp in stamped:
        if stamp is None:
            continue
        since_boot_s, said = stamp
        for kind, pattern in _COMPILED:
            if pattern.search(said) and not (kind in _NIC_KINDS and not _is_nic(said, network_devices)):
                marks.append(KernelMark(_at_its_time(kind, since_boot_s), since_boot_s, said.strip()))
                break
    return KernelLog(tuple(marks), records(text))


# Seconds since boot as dmesg and netconsole print them; the wall clock of `dmesg -T`; journalctl's lines; and the
# fields of netconsole's extended format (level, number, microseconds, flags).
_SINCE_BOOT = re.compile(r"(?:<[0-9]+>)?\[\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\](?:\[[^\]]*\])? ?(.*)")
_BY_WALL_CLOCK = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9]{2} [0-9:]{8} [0-9]{4}\] (.*)")
_BY_JOURNAL = re.compile(
    r"(?:[A-Z][a-z]{2} [ 0-9]{2} [0-9:.]{8,15}|[0-9]{4}-[0-9-]{5}T\S{8,24}) \S+ (?:kernel: (.*)|(\S.*))"
)
_EXTENDED = re.compile(r"[0-9]{1,3},[0-9]{1,10},([0-9]{1,15}),[^;]{1,40};(.*)")


def _stamped(line: str) -> tuple[float | None, str] | None:
    """Seconds since boot where the line tells, and what it says; None: no line of a log."""
    if match := _SINCE_BOOT.match(line):
        return float(match[1]), match[2]
    if match := _EXTENDED.match(line):
        inner = _SINCE_BOOT.match(match[2])
        return int(match[1]) / 1e6, inner[2] if inner else match[2]
    if match := _BY_WALL_CLOCK.match(line):
        return None, match[1]
    if match := _BY_JOURNAL.match(line):
        return None, match[1] or match[2]
    return None


def _at_its_time(kind: str, since_boot_s: float | None) -> str:
    """A root or an init that is lost long after the start is no fault of the image: the system fell over."""
    late = since_boot_s is not None and since_boot_s > BOOT_LASTS_S
    return "panic" if kind in ("no_root", "no_init") and late else kind


def _network_devices(text: str) -> frozenset[str]:
    """PCI addresses that a network driver names."""
    drivers = "|".join(map(re.escape, NETWORK_DRIVERS))
    return frozenset(re.findall(rf"(?:{drivers})\S* (0000:[0-9a-f]{{2}}:[0-9a-f]{{2}}\.[0-9a-f])", text))


def _is_nic(line: str, devices: frozenset[str]) -> bool:
    return line.startswith(NETWORK_DRIVERS) or any(device in line for device in devices)
