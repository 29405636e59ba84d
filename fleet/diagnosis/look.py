"""One look at one duck: all observations of it, and the fleet's baseline. Frozen; made from texts or from the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from duckfleet.fleet.diagnosis.observation import Observed, observe
from duckfleet.fleet.diagnosis.sources.around import baseline, dhcp_log, duck, events, outside, wol
from duckfleet.fleet.diagnosis.sources.clock import cmos, rtc_readings, rtc_status
from duckfleet.fleet.diagnosis.sources.compute import bandwidth, cpufreq, kernels, rapl, thermal
from duckfleet.fleet.diagnosis.sources.link import burst, ethtool, ethtool_statistics, ip_link
from duckfleet.fleet.diagnosis.sources.memory import dmidecode, edac, mce, meminfo, memtest
from duckfleet.fleet.diagnosis.sources.system import df, dmesg

NOWHEN = datetime(1970, 1, 1, tzinfo=UTC)
NOBODY = duck.DuckIdentity("", "", "", "", "", "", NOWHEN)


@dataclass(frozen=True)
class Look:
    """Every source is there; what was not taken or could not be read is an `Observed` without value."""

    duck: duck.DuckIdentity
    baseline: baseline.Baseline
    events: Observed[tuple[events.HistoryEvent, ...]]
    outside: Observed[outside.Outside]
    dhcp: Observed[dhcp_log.DhcpLog]
    packets: Observed[tuple[wol.MagicPacket, ...]]
    rtc_status: Observed[rtc_status.RtcStatus]
    rtc_readings: Observed[tuple[rtc_readings.RtcReading, ...]]
    cmos: Observed[cmos.CmosRegisters]
    smbios: Observed[dmidecode.Smbios]
    meminfo: Observed[meminfo.Meminfo]
    edac: Observed[edac.Edac]
    machine_checks: Observed[mce.MachineChecks]
    pattern_test: Observed[memtest.PatternTest]
    link: Observed[ethtool.LinkSettings]
    counters: Observed[ethtool_statistics.CounterRises]
    interfaces: Observed[tuple[ip_link.Interface, ...]]
    burst: Observed[burst.Burst]
    power: Observed[rapl.PowerLimits]
    heat: Observed[thermal.Heat]
    frequencies: Observed[cpufreq.Frequencies]
    bandwidth: Observed[tuple[bandwidth.BandwidthRun, ...]]
    kernels: Observed[tuple[kernels.KernelRun, ...]]
    kernel_log: Observed[dmesg.KernelLog]
    storage: Observed[df.FileSystems]

    @property
    def now(self) -> datetime:
        return self.duck.now

    def observations(self) -> tuple[Observed[Any], ...]:
        """All of them, in the order of the fields."""
        return tuple(self.by_name().values())

    def by_name(self) -> dict[str, Observed[Any]]:
        """All of them by the name of their field, in that order."""
        return {
            field.name: getattr(self, field.name) for field in fields(self) if field.name not in ("duck", "baseline")
        }


def look_from_texts(texts: Mapping[str, str]) -> Look:
    """From raw texts by file name: those of the corpus, or what was collected over ssh.

    Raises `Unreadable` only when `duck.json` is there and does not say who it is.
    """
    identity = duck.parse(texts["duck.json"]) if "duck.json" in texts else NOBODY
    now = identity.now
    both = (texts.get("ethtool_s_before.txt"), texts.get("ethtool_s_after.txt"))
    fleet = observe("fleet.json", texts.get("fleet.json"), now, baseline.parse)
    return Look(
        duck=identity,
        baseline=fleet.value or baseline.Baseline(),
        events=observe("history", texts.get("events.txt"), now, events.parse),
        outside=observe("outside", texts.get("outside.json"), now, outside.parse),
        dhcp=observe("DHCP log", texts.get("dhcp.log"), now, dhcp_log.parse),
        packets=observe("magic packets", texts.get("wol.txt"), now, wol.parse),
        rtc_status=observe("/proc/driver/rtc", texts.get("rtc.txt"), now, rtc_status.parse),
        rtc_readings=observe("RTC at boot", texts.get("rtc_reading.txt"), now, rtc_readings.parse),
        cmos=observe("CMOS registers", texts.get("cmos.txt"), now, cmos.parse),
        smbios=observe("dmidecode", texts.get("dmidecode.txt"), now, dmidecode.parse),
        meminfo=observe("/proc/meminfo", texts.get("meminfo.txt"), now, meminfo.parse),
        edac=observe("EDAC", texts.get("edac.txt"), now, edac.parse),
        machine_checks=observe("machine checks", texts.get("mce.txt"), now, mce.parse),
        pattern_test=observe("pattern test", texts.get("memtest.txt"), now, memtest.parse),
        link=observe("ethtool", texts.get("ethtool.txt"), now, ethtool.parse),
        counters=_counters(both, now),
        interfaces=observe("ip link", texts.get("ip_link.txt"), now, ip_link.parse),
        burst=observe("burst test", texts.get("burst.json"), now, burst.parse),
        power=observe("RAPL", texts.get("rapl.txt"), now, rapl.parse),
        heat=observe("thermal", texts.get("thermal.txt"), now, thermal.parse),
        frequencies=observe("cpufreq", texts.get("cpufreq.txt"), now, cpufreq.parse),
        bandwidth=observe("bandwidth", texts.get("bandwidth.json"), now, bandwidth.parse),
        kernels=observe("kernels", texts.get("kernels.json"), now, kernels.parse),
        kernel_log=observe("dmesg", texts.get("dmesg.txt"), now, dmesg.parse),
        storage=observe("df", texts.get("df.txt"), now, df.parse),
    )


def _counters(both: tuple[str | None, str | None], now: datetime) -> Observed[ethtool_statistics.CounterRises]:
    source = "ethtool -S"
    before, after = both
    if before is None or after is None:
        return Observed.absent(source)
    return observe(source, "both", now, lambda _: ethtool_statistics.parse((before, after)))
