"""The real-time clock and its battery. What says "dead" is believed; what says "okay" proves nothing.

A clock that is right proves a battery only if the mains were away in between: standby power keeps it otherwise.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.history import WRONG_BY_A_DAY_S
from duckfleet.fleet.diagnosis.sources.clock.rtc_readings import RtcReading
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, SOME, STRONG, Clue, Symptom

QUARTER_HOUR_S = 900.0
FARTHEST_ZONE_S = 14 * 3600.0
ZONE_TOLERANCE_S = 30.0
DRIFT_PPM = 250.0  # a crystal with a good battery keeps within some 100 ppm
LEAST_DRIFT_S = 60.0
LONGEST_UPTIME = timedelta(days=400)  # a time at boot that is older was not right then
LEAST_SPAN_S = 6 * 3600.0
STOOD_STILL_TOLERANCE = 0.1


def is_time_zone(offset_s: float) -> bool:
    """Whether an RTC that is off by this much just keeps local time."""
    if not QUARTER_HOUR_S / 2 < abs(offset_s) <= FARTHEST_ZONE_S + ZONE_TOLERANCE_S:
        return False
    return abs(offset_s - QUARTER_HOUR_S * round(offset_s / QUARTER_HOUR_S)) <= ZONE_TOLERANCE_S


def battery_says_dead(case: Case) -> Evidence | None:
    status = case.look.rtc_status
    return case.says(status, "batt_status: dead") if status.value and status.value.battery == "dead" else None


def register_says_dead(case: Case) -> Evidence | None:
    cmos = case.look.cmos
    if cmos.value is None:
        return None
    said = [
        text
        for flag, text in (
            (cmos.value.valid_ram_and_time is False, "register D: RAM and time not valid"),
            (bool(cmos.value.lost_power), "diagnostic status: the clock lost power"),
            (bool(cmos.value.bad_checksum), "diagnostic status: checksum of the settings wrong"),
            (bool(cmos.value.bad_time), "diagnostic status: time not valid"),
        )
        if flag
    ]
    return case.says(cmos, "; ".join(said)) if said else None


def _readings(case: Case) -> tuple[RtcReading, ...]:
    """Those whose host time can be: a host that was itself wrong says nothing of the RTC. One alone has those of the
    history before it."""
    readings = case.look.rtc_readings.value or ()
    if len(readings) == 1:
        since = case.history.battery_replaced_at
        readings = (
            *(
                RtcReading(seen.at + timedelta(seconds=seen.offset_s), seen.at)
                for seen in case.history.rtc_seen
                if seen.at < readings[0].host - timedelta(minutes=5) and (since is None or seen.at > since)
            ),
            *readings,
        )
    return tuple(reading for reading in readings if reading.host <= case.look.now and reading.host.year > 2020)


def clock_was_lost(case: Case) -> Evidence | None:
    readings = _readings(case)
    if readings:
        last = readings[-1]
        if abs(last.offset_s) <= WRONG_BY_A_DAY_S or _always_so(readings):
            return None
        return case.says(case.look.rtc_readings, f"read {last.rtc:%Y-%m-%d %H:%M} at boot", last.host)
    status, log = case.look.rtc_status, case.look.kernel_log
    at_boot = log.value.clock_at_boot if log.value else None
    if case.look.rtc_readings.value is None and at_boot is not None and case.look.now - at_boot > LONGEST_UPTIME:
        return case.says(log, f"the kernel read {at_boot:%Y-%m-%d %H:%M} from it at boot")
    if case.look.rtc_readings.value is not None or status.value is None or status.value.time is None:
        return None
    if abs((status.value.time - case.look.now).total_seconds()) <= WRONG_BY_A_DAY_S:
        return None
    return case.says(status, f"reads {status.value.time:%Y-%m-%d %H:%M}")


def _always_so(readings: tuple[RtcReading, ...]) -> bool:
    """Wrong by the same amount as the time before: it was set wrong, and keeps time."""
    return len(readings) >= 2 and abs(readings[-1].offset_s - readings[-2].offset_s) < LEAST_DRIFT_S


def clock_stood_still(case: Case) -> Evidence | None:
    """Behind by as long as the mains were away: it runs on standby power only."""
    readings = _readings(case)
    if not readings:
        return None
    last = readings[-1]
    behind_s = -last.offset_s
    for loss in case.history.mains_losses:
        away_s = loss.duration_s
        if away_s is None or away_s < LEAST_DRIFT_S * 5 or loss.at > last.host:
            continue
        if abs(behind_s - away_s) <= max(STOOD_STILL_TOLERANCE * away_s, LEAST_DRIFT_S):
            return case.says(
                case.look.rtc_readings, f"{behind_s:.0f} s behind, as long as the mains were away", last.host
            )
    return None


def right_on_standby_power_only(case: Case) -> Evidence | None:
    """Lost at its last test without mains, and right since: nothing has proven the battery in between."""
    since = case.history.battery_replaced_at
    tests = [(seen.at, seen.offset_s) for seen in case.history.rtc_seen if seen.was_cold]
    tests += [
        (reading.host, reading.offset_s)
        for earlier, reading in zip((None, *_readings(case)), _readings(case), strict=False)
        if abs(reading.offset_s) > WRONG_BY_A_DAY_S or (earlier and _mains_lost(case, earlier.host, reading.host))
    ]
    tests = sorted(test for test in tests if since is None or test[0] > since)
    if not tests or abs(tests[-1][1]) <= WRONG_BY_A_DAY_S or clock_was_lost(case):
        return None
    return case.tells(
        "the clock was lost when mains were away last, and only standby power has kept it since", tests[-1][0]
    )


def mains_were_lost(case: Case) -> Evidence | None:
    losses = case.history.mains_losses
    return case.tells("mains were lost", losses[-1].at) if losses else None


def clock_lost_before(case: Case) -> Evidence | None:
    since = case.history.battery_replaced_at
    for seen in reversed(case.history.rtc_seen):
        if abs(seen.offset_s) > WRONG_BY_A_DAY_S and (since is None or seen.at > since):
            return case.tells("the clock was lost at an earlier boot too", seen.at)
    return None


def battery_is_bad(case: Case) -> tuple[Evidence, ...]:
    signs = (
        battery_says_dead(case),
        register_says_dead(case),
        clock_was_lost(case),
        clock_stood_still(case),
        right_on_standby_power_only(case),
    )
    return tuple(sign for sign in signs if sign)


def clock_drifts(case: Case) -> tuple[Evidence, ...]:
    """Two readings without a loss of mains between them; the clock is set at each boot, or it is not."""
    readings = _readings(case)
    if len(readings) < 2:
        return ()
    earlier, last = readings[-2], readings[-1]
    span_s = (last.host - earlier.host).total_seconds()
    if span_s < LEAST_SPAN_S or abs(last.offset_s) > WRONG_BY_A_DAY_S:
        return ()
    gained_s = last.offset_s - earlier.offset_s
    if _mains_lost(case, earlier.host, last.host) and not _more_than_a_stop(case, earlier.host, last.host, gained_s):
        return ()
    if abs(last.offset_s) < LEAST_DRIFT_S or abs(gained_s) < LEAST_DRIFT_S or is_time_zone(gained_s):
        return ()
    ppm = gained_s / span_s * 1e6
    if abs(ppm) < DRIFT_PPM:
        return ()
    way = "fast" if ppm > 0 else "slow"
    text = f"{abs(gained_s):.0f} s {way} in {span_s / 86400:.1f} days ({abs(ppm):.0f} ppm)"
    return (case.says(case.look.rtc_readings, text, last.host),)


def _mains_lost(case: Case, begin: datetime, end: datetime) -> bool:
    return any(begin <= loss.at <= end for loss in case.history.mains_losses)


def _more_than_a_stop(case: Case, begin: datetime, end: datetime, gained_s: float) -> bool:
    """Whether standing still without mains cannot explain it: it gained, or lost more than they were away."""
    away = [loss.duration_s for loss in case.history.mains_losses if begin <= loss.at <= end]
    if gained_s > 0:
        return True
    return None not in away and -gained_s > 1.2 * sum(known or 0.0 for known in away)


def drifted_before(case: Case) -> Evidence | None:
    drifted = [seen for seen in case.history.rtc_seen if LEAST_DRIFT_S < abs(seen.offset_s) < WRONG_BY_A_DAY_S]
    return case.tells(f"was {drifted[-1].offset_s:+.0f} s off at an earlier boot", drifted[-1].at) if drifted else None


SYMPTOMS = (
    Symptom(
        "battery",
        "the clock's battery does not hold",
        Severity.REPAIR,
        battery_is_bad,
        {"dead_cmos_battery": 0.9, "clock_drift": 0.05, "boot_order": 0.01, "bios_outdated": 0.01},
        (
            Clue(battery_says_dead, {"dead_cmos_battery": STRONG}),
            Clue(register_says_dead, {"dead_cmos_battery": STRONG}),
            Clue(clock_was_lost, {"dead_cmos_battery": GOOD, "clock_drift": HARDLY}),
            Clue(clock_stood_still, {"dead_cmos_battery": STRONG}),
            Clue(mains_were_lost, {"dead_cmos_battery": SOME}),
            Clue(clock_lost_before, {"dead_cmos_battery": GOOD}),
        ),
    ),
    Symptom(
        "clock_drift",
        "the clock does not keep time",
        Severity.NOTE,
        clock_drifts,
        {"clock_drift": 0.85, "dead_cmos_battery": 0.15},
        (
            Clue(drifted_before, {"clock_drift": SOME}),
            Clue(mains_were_lost, {"dead_cmos_battery": SOME}),
            Clue(clock_lost_before, {"dead_cmos_battery": DECISIVE, "clock_drift": LESS}),
        ),
        part_of=("battery",),
    ),
)
