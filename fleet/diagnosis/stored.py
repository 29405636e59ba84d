"""A look at a duck from what the store keeps: probe runs, measurements, event log. Pure: records in, a look out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from duckfleet.fleet.diagnosis import probe_health, probe_report
from duckfleet.fleet.diagnosis.look import Look, look_from_texts
from duckfleet.fleet.diagnosis.observation import Observed
from duckfleet.fleet.diagnosis.probe_report import Report
from duckfleet.fleet.diagnosis.sources.around.baseline import Baseline
from duckfleet.fleet.diagnosis.sources.around.dhcp_log import BootFile, DhcpAsk, DhcpLog
from duckfleet.fleet.diagnosis.sources.around.duck import DuckIdentity
from duckfleet.fleet.diagnosis.sources.around.events import HistoryEvent
from duckfleet.fleet.diagnosis.sources.around.outside import Outside
from duckfleet.fleet.diagnosis.sources.clock.rtc_readings import RtcReading
from duckfleet.fleet.diagnosis.sources.compute.bandwidth import BandwidthRun
from duckfleet.fleet.diagnosis.sources.compute.kernels import KernelRun
from duckfleet.fleet.diagnosis.sources.raw import number, words
from duckfleet.inventory.site import Duck

if TYPE_CHECKING:
    from duckfleet.inventory.store.records import Event, Measurement, ProbeRun

BOOT_KINDS = ("dhcp_request", "dhcp_ignored", "dhcp_lease", "tftp_sent", "tftp_failed", "file_sent", "file_aborted")
KERNEL_PREFIX = "kernel."


@dataclasses.dataclass(frozen=True, slots=True)
class Kept:
    """What the store keeps that concerns one duck."""

    events: Sequence[Event]  # of this duck and of the fleet, oldest first
    probes: Sequence[ProbeRun]  # of this duck, oldest first, those that ran
    failed_probe: ProbeRun | None  # the newest that could not run, where it is newer than those
    measurements: Mapping[str, Sequence[Measurement]]  # by name, oldest first


def look_from_store(
    duck: Duck,
    kept: Kept,
    baseline: Baseline,
    now_s: float,
    outside: Observed[Outside] | None = None,
    interface: str = "",
) -> Look:
    """Everything that the store knows of this duck at `now_s`."""
    now = when(now_s)
    reports = [Report.of(run.report, run.finished_at_s) for run in kept.probes]
    last = reports[-1] if reports else None
    identity = DuckIdentity(duck.name, duck.address, duck.mac, duck.domain, duck.rack, interface, now)
    mine = [event for event in kept.events if event.mac == duck.mac]
    from_texts = look_from_texts(probe_report.texts(last) if last else {})
    look = dataclasses.replace(
        from_texts,
        duck=identity,
        baseline=baseline,
        events=Observed("history", now, history(mine)),
        outside=outside or Observed.absent("outside"),
        dhcp=boot_service(duck, kept.events, now),
        rtc_readings=_first(from_texts.rtc_readings, rtc_readings(mine)),
        bandwidth=_first(from_texts.bandwidth, bandwidth_runs(kept.measurements)),
        kernels=_first(from_texts.kernels, kernel_runs(kept.measurements)),
    )
    if last is None:
        return dataclasses.replace(look, meminfo=_never_probed(kept.failed_probe))
    if probe_health.is_process(last, duck.mac):
        shared = probe_health.SHARED
        look = dataclasses.replace(
            look, bandwidth=Observed.absent("bandwidth", shared), kernels=Observed.absent("kernels", shared)
        )
    earlier = reports[-2] if len(reports) > 1 else None
    look = dataclasses.replace(
        look,
        meminfo=_first(look.meminfo, probe_report.meminfo(last)),
        smbios=_first(look.smbios, probe_report.smbios(last)),
        rtc_status=_at_its_time(_first(look.rtc_status, probe_report.rtc_status(last)), now, last.at),
        link=_first(look.link, probe_report.link(last, duck.mac)),
        interfaces=_first(look.interfaces, probe_report.interfaces(last, duck.mac)),
        counters=_first(look.counters, probe_report.counters(earlier, last, duck.mac)),
        cmos=_first(look.cmos, probe_health.cmos(last)),
        edac=_first(look.edac, probe_health.edac(last)),
        machine_checks=_first(look.machine_checks, probe_health.machine_checks(last)),
        pattern_test=_first(look.pattern_test, probe_health.pattern_test(last)),
        burst=_first(look.burst, probe_health.burst(last)),
        power=_first(look.power, probe_health.power(last)),
        heat=_first(look.heat, probe_health.heat(last)),
        frequencies=_first(look.frequencies, probe_health.frequencies(last, duck.mac)),
        kernel_log=_first(look.kernel_log, probe_health.kernel_log(last, duck.mac)),
        storage=_first(look.storage, probe_health.storage(last, duck.mac)),
    )
    return _without_hardware(look) if probe_health.is_process(last, duck.mac) else look


def _without_hardware(look: Look) -> Look:
    """A duck that is a process has no clock, card or sensor of its own: what it could not read was never taken."""
    not_taken: dict[str, Any] = {
        name: Observed.absent(observed.source, observed.unknown)
        for name, observed in look.by_name().items()
        if observed.value is None
    }
    return dataclasses.replace(look, **not_taken)


def when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _first(better: Observed[Any], other: Observed[Any]) -> Observed[Any]:
    return better if better.value is not None or (better.was_tried and other.value is None) else other


def _never_probed(failed: ProbeRun | None) -> Observed[Any]:
    if failed is None:
        return Observed.absent("duckd")
    return Observed("duckd", when(failed.finished_at_s), None, f"the probe could not run: {failed.error}")


def _at_its_time(status: Observed[Any], now: datetime, taken: datetime) -> Observed[Any]:
    """An RTC time is compared with now: move what was read at the probe by what has passed since."""
    if status.value is None or status.value.time is None:
        return status
    moved = dataclasses.replace(status.value, time=status.value.time + (now - taken))
    return Observed(status.source, taken, moved)


def history(events: Sequence[Event]) -> tuple[HistoryEvent, ...]:
    """The log's lines, each with the state after it; the boot image's reports as readings of the RTC."""
    found: list[HistoryEvent] = []
    state = "unknown"
    for event in events:
        state = event.to_state or state
        at = when(event.at_s)
        found.append(HistoryEvent(at, state, event.kind, event.evidence))
        reading = rtc_of_boot(event)
        if reading is not None:
            evidence = {"rtc": reading.rtc.isoformat(), "host": reading.host.isoformat(), "before_set": True}
            found.append(HistoryEvent(at, state, "rtc_read", evidence))
    return tuple(found)


def rtc_of_boot(event: Event) -> RtcReading | None:
    """The RTC as the image found it, from its report: the reading is as old as its uptime is behind the report's."""
    if words(event.evidence.get("because")) != "reported" and event.kind != "reported":
        return None
    epoch, uptime_s, read_uptime_s = (
        number(_numeric(event.evidence.get(key))) for key in ("rtc_since_epoch", "uptime_s", "rtc_read_uptime_s")
    )
    if epoch is None or uptime_s is None or read_uptime_s is None or not 0 <= epoch < 2**33:
        return None
    return RtcReading(when(epoch), when(event.at_s - max(0.0, uptime_s - read_uptime_s)))


def _numeric(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return None


def rtc_readings(events: Sequence[Event]) -> Observed[tuple[RtcReading, ...]]:
    """The last two."""
    found = tuple(reading for event in events if (reading := rtc_of_boot(event)))[-2:]
    return Observed("RTC at boot", found[-1].host, found) if found else Observed.absent("RTC at boot")


def boot_service(duck: Duck, events: Sequence[Event], now: datetime) -> Observed[DhcpLog]:
    """What the boot service told since the duck was last woken; nothing where it told of nobody."""
    wakes = [event.at_s for event in events if event.mac == duck.mac and event.kind in ("wake_sent", "reboot_sent")]
    start = when(wakes[-1]) if wakes else now - timedelta(minutes=10)
    asks: list[DhcpAsk] = []
    files: list[BootFile] = []
    for event in events:
        kind = words(event.evidence.get("because")) or event.kind
        if kind not in BOOT_KINDS or when(event.at_s) < start:
            continue
        if words(event.evidence.get("domain")) not in ("", duck.domain):
            continue
        _add(event, kind, asks, files, duck)
    if not asks and not files:
        return Observed.absent("boot service")
    return Observed("boot service", now, DhcpLog(start, now, tuple(asks), tuple(files), 0.0))


def _add(event: Event, kind: str, asks: list[DhcpAsk], files: list[BootFile], duck: Duck) -> None:
    at, mac = when(event.at_s), event.mac or words(event.evidence.get("mac"))
    if kind == "dhcp_lease":
        for index in range(len(asks) - 1, -1, -1):
            if asks[index].mac == mac:
                asks[index] = dataclasses.replace(asks[index], answered=True, acknowledged=True)
                return
    elif kind in ("dhcp_request", "dhcp_ignored"):
        refusal = words(event.evidence.get("reason")) or "ignored" if kind == "dhcp_ignored" else ""
        vendor = words(event.evidence.get("vendor_class"))
        if words(event.evidence.get("stage")) in ("firmware", "ipxe"):
            vendor = vendor or "PXEClient"
        asks.append(DhcpAsk(at, mac, vendor, "", kind == "dhcp_request", False, refusal))
    else:
        failure = "" if kind.endswith("_sent") else words(event.evidence.get("reason")) or "not delivered whole"
        address = duck.address if event.mac == duck.mac else ""
        files.append(BootFile(at, words(event.evidence.get("file")), address, failure))


def bandwidth_runs(measurements: Mapping[str, Sequence[Measurement]]) -> Observed[tuple[BandwidthRun, ...]]:
    written = {row.at_s: row.value for row in measurements.get("write_bandwidth", ())}
    series = measurements.get("read_bandwidth", ())
    runs = tuple(BandwidthRun(when(row.at_s), row.value, written.get(row.at_s)) for row in series if row.value)
    return Observed("bandwidth", runs[-1].at, runs) if runs else Observed.absent("bandwidth")


def kernel_runs(measurements: Mapping[str, Sequence[Measurement]]) -> Observed[tuple[KernelRun, ...]]:
    """Measurements named `kernel.<name>`, in GB/s; those of one probe run are one run."""
    by_run: dict[tuple[float, int], list[tuple[str, float]]] = {}
    for name, series in measurements.items():
        for row in series if name.startswith(KERNEL_PREFIX) else ():
            figures = by_run.setdefault((row.at_s, row.probe_run_id or 0), [])
            figures.append((name.removeprefix(KERNEL_PREFIX), row.value))
    runs = tuple(KernelRun(when(at_s), tuple(sorted(figures))) for (at_s, _), figures in sorted(by_run.items()))
    return Observed("kernels", runs[-1].at, runs) if runs else Observed.absent("kernels")
