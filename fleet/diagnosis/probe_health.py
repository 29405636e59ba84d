"""duckd's `--probe` report as observations, second part: errors, heat, power, speed, the kernel's log, room. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from duckfleet.fleet.diagnosis.observation import Observed, Unreadable
from duckfleet.fleet.diagnosis.probe_report import Report, nic_of
from duckfleet.fleet.diagnosis.sources.clock.cmos import BAD_CHECKSUM, BAD_TIME, FLOATING, LOST_POWER, CmosRegisters
from duckfleet.fleet.diagnosis.sources.compute.cpufreq import (
    TURBO_WINDOW_S,
    Frequencies,
    count_of,
    settled_at,
    slowest_of,
)
from duckfleet.fleet.diagnosis.sources.compute.rapl import LONG_TERM, PowerLimits
from duckfleet.fleet.diagnosis.sources.compute.thermal import COLDEST_C, HOTTEST_C, PACKAGE_ZONES, Heat
from duckfleet.fleet.diagnosis.sources.link import burst as bursts
from duckfleet.fleet.diagnosis.sources.link.burst import Burst
from duckfleet.fleet.diagnosis.sources.memory.edac import Edac, MemoryController
from duckfleet.fleet.diagnosis.sources.memory.mce import MachineChecks, records
from duckfleet.fleet.diagnosis.sources.memory.memtest import PatternTest, wrong_bits
from duckfleet.fleet.diagnosis.sources.raw import number, rows, table, whole, words
from duckfleet.fleet.diagnosis.sources.system import dmesg
from duckfleet.fleet.diagnosis.sources.system.df import FileSystem, FileSystems
from duckfleet.fleet.diagnosis.sources.system.dmesg import KernelLog

_T = TypeVar("_T")


def _observed(report: Report, source: str, value: _T | None, *what: str) -> Observed[_T]:
    if value is None:
        return Observed(source, report.at, None, report.reason(*what)) if report.mentions(*what) else _absent(source)
    return Observed(source, report.at, value)


def _absent(source: str) -> Observed[Any]:
    return Observed.absent(source)


def is_process(report: Report, mac: str) -> bool:
    """Whether the duck is a process of a lab: it has no card of its own, and shares its cores with others."""
    return bool(rows(report.values, "nics")) and nic_of(report, mac) is None


def edac(report: Report) -> Observed[Edac]:
    listed = table(report.values, "memory").get("controllers")
    if not isinstance(listed, list):
        return _observed(report, "EDAC", None, "memory.controllers")
    found = []
    for row in listed:
        fields = row if isinstance(row, Mapping) else {}
        corrected, uncorrected = whole(fields.get("corrected")), whole(fields.get("uncorrected"))
        if corrected is None or uncorrected is None or min(corrected, uncorrected) < 0:
            return Observed("EDAC", report.at, None, f"{words(fields.get('name'))} has no counts")
        found.append(
            MemoryController(words(fields.get("name")), corrected, uncorrected, whole(fields.get("since_reset_s")))
        )
    return Observed("EDAC", report.at, Edac(tuple(found)))


def machine_checks(report: Report) -> Observed[MachineChecks]:
    exceptions = whole(table(report.values, "machine_checks").get("exceptions"))
    logged = records(words(report.values.get("kernel_log")))
    found = MachineChecks(exceptions or 0, logged) if exceptions is not None or logged else None
    return _observed(report, "machine checks", found, "machine_checks")


def pattern_test(report: Report) -> Observed[PatternTest]:
    fields = table(report.values, "memory_test")
    tested = whole(fields.get("tested_bytes"))
    if tested is None or tested < 0:
        return _observed(report, "pattern test", None, "memory_test")
    errors = tuple(wrong for row in rows(fields, "errors") if (wrong := wrong_bits(row)))
    if not tested and not errors:
        return Observed("pattern test", report.at, None, "tested nothing")
    patterns = tuple(str(name) for name in rows(fields, "patterns"))
    return Observed("pattern test", report.at, PatternTest(tested, errors, patterns))


def cmos(report: Report) -> Observed[CmosRegisters]:
    status = whole(table(report.values, "clock").get("diagnostic_status"))
    if status is None or not 0 <= status < FLOATING:
        return _observed(report, "CMOS registers", None, "clock.diagnostic_status")
    bits = (bool(status & mask) for mask in (LOST_POWER, BAD_CHECKSUM, BAD_TIME))
    return Observed("CMOS registers", report.at, CmosRegisters(None, *bits))


def power(report: Report) -> Observed[PowerLimits]:
    limits = []
    for row in rows(report.values, "power_limits"):
        fields = row if isinstance(row, Mapping) else {}
        limit = whole(fields.get("limit_uw"))
        if words(fields.get("constraint")) == LONG_TERM and limit and limit > 0 and fields.get("enabled") is not False:
            limits.append((words(fields.get("interface")), limit))
    found = PowerLimits(tuple(sorted(limits))) if rows(report.values, "power_limits") else None
    return _observed(report, "RAPL", found, "power_limits")


def heat(report: Report) -> Observed[Heat]:
    idle, loaded = table(report.values, "heat"), table(report.values, "heat_loaded")
    first, second = (_counts(table(part, "throttled")) for part in (idle, loaded))
    throttled = max((max(0, count - first.get(name, 0)) for name, count in second.items()), default=None)
    found = Heat(_package_c(idle), _package_c(loaded), throttled)
    return _observed(report, "thermal", None if found == Heat(None, None, None) else found, "heat", "heat_loaded")


def _counts(fields: Mapping[str, Any]) -> dict[str, int]:
    return {name: count for name, value in fields.items() if (count := whole(value)) is not None and count >= 0}


def _package_c(part: Mapping[str, Any]) -> float | None:
    found = {}
    for row in rows(part, "zones"):
        celsius = number(row.get("celsius")) if isinstance(row, Mapping) else None
        if celsius is not None and COLDEST_C <= celsius <= HOTTEST_C:
            found[words(row.get("type"))] = celsius
    return next((found[name] for name in PACKAGE_ZONES if name in found), None)


def frequencies(report: Report, mac: str) -> Observed[Frequencies]:
    """Under load. Without rows past the turbo window the last is taken for what it holds."""
    source = "cpufreq"
    if is_process(report, mac):
        return Observed(source, report.at, None, SHARED)
    fields, cpu = table(table(report.values, "measured"), "frequency"), table(report.values, "cpu")
    rows_of_cores = []
    for row in rows(fields, "samples"):
        at_s = number(row.get("at_s")) if isinstance(row, Mapping) else None
        cores = [mhz for mhz in map(number, rows(row, "mhz")) if mhz and mhz > 0]
        if at_s is not None and at_s >= 0 and cores:
            rows_of_cores.append((at_s, cores))
    if not rows_of_cores:
        return _observed(report, source, None, "measured.frequency")
    samples = [(at_s, statistics.median(cores)) for at_s, cores in rows_of_cores]
    late_cores = [cores for at_s, cores in rows_of_cores if at_s > TURBO_WINDOW_S] or [
        cores for _, cores in rows_of_cores
    ]
    late = [mhz for at_s, mhz in samples if at_s > TURBO_WINDOW_S] or [statistics.median(mhz for _, mhz in samples)]
    sustained, first = statistics.median(late), samples[0][1]
    turbo = fields.get("turbo")
    settled = settled_at(samples, sustained) if samples[-1][0] > TURBO_WINDOW_S else None
    return Observed(
        source,
        report.at,
        Frequencies(
            words(cpu.get("governor")),
            turbo if isinstance(turbo, bool) else None,
            whole(fields.get("scaling_max_khz")),
            count_of(words(cpu.get("online"))),
            first,
            sustained,
            settled,
            slowest_of(late_cores),
        ),
    )


SHARED = "the duck is a process: its figures are those of a machine that it shares"


def kernel_log(report: Report, mac: str) -> Observed[KernelLog]:
    text = report.values.get("kernel_log")
    if is_process(report, mac):
        return Observed("dmesg", report.at, None, SHARED)
    if not isinstance(text, str):
        return _observed(report, "dmesg", None, "kernel_log")
    return _parsed("dmesg", report, lambda: dmesg.parse(text))


def storage(report: Report, mac: str) -> Observed[FileSystems]:
    if is_process(report, mac):
        return Observed("df", report.at, None, SHARED)
    found = []
    for row in rows(report.values, "storage"):
        fields = row if isinstance(row, Mapping) else {}
        for counts in ("bytes", "inodes"):
            total, available = whole(fields.get(f"total_{counts}")), whole(fields.get(f"available_{counts}"))
            if total and available is not None and fields.get("read_only") is not True:
                found.append(FileSystem(words(fields.get("path")), total, available, counts))
    return _observed(report, "df", FileSystems(tuple(found)) if found else None, "storage")


def burst(report: Report) -> Observed[Burst]:
    fields = table(report.values, "burst")
    if not fields:
        return _observed(report, "burst test", None, "burst")
    return _parsed("burst test", report, lambda: bursts.from_json(fields))


def _parsed(source: str, report: Report, parse: Callable[[], _T]) -> Observed[_T]:
    try:
        return Observed(source, report.at, parse())
    except Unreadable as reason:
        return Observed(source, report.at, None, str(reason))
