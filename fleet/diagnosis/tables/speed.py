"""A box that computes slower than the others, and what holds it back."""

from __future__ import annotations

from collections.abc import Sequence

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.stragglers import FLOOR, MIN_RUNS, is_slow, slow_runs
from duckfleet.fleet.diagnosis.tables.firmware import firmware_older
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, RARELY, SOME, STRONG, Clue, Symptom

ONE_CORE_LAGS = 0.8
FULL_SPEED = 0.97  # of the fleet's median
HOT_C = 95.0  # Tjunction of these parts is 105
WARMER_C = 10.0
BUSY_C = 12.0  # warmer before the load than a box at rest
REST_C = 48.0
EARLY_S = 60
FEW_THROTTLES = 10


def _slow_series(case: Case, observed_runs: Sequence[dict[str, float]], names: Sequence[str]) -> str:
    """The first figure that was slow on the last two runs, in words."""
    for name in names:
        figure = case.look.baseline.figure(name, case.look.duck.domain)
        values = [run[name] for run in observed_runs if name in run]
        if figure and slow_runs(values, figure):
            return f"{values[-1] / figure.median:.0%} of the fleet's median on {MIN_RUNS} runs"
    return ""


def kernels_slow(case: Case) -> Evidence | None:
    kernels = case.look.kernels
    runs = [{f"kernel.{name}": value for name, value in run.gb_per_s} for run in kernels.value or ()]
    names = sorted({name for run in runs for name in run})
    text = _slow_series(case, runs, names)
    return case.says(kernels, f"kernels at {text}", kernels.value[-1].at if kernels.value else None) if text else None


def memory_reads_slowly(case: Case) -> Evidence | None:
    bandwidth = case.look.bandwidth
    runs = [
        {
            name: value
            for name, value in (
                ("read_bytes_per_s", run.read_bytes_per_s),
                ("write_bytes_per_s", run.write_bytes_per_s),
            )
            if value
        }
        for run in bandwidth.value or ()
    ]
    text = _slow_series(case, runs, ("read_bytes_per_s", "write_bytes_per_s"))
    return (
        case.says(bandwidth, f"memory at {text}", bandwidth.value[-1].at if bandwidth.value else None) if text else None
    )


def _share_of_frequency(case: Case) -> float | None:
    figure = case.look.baseline.figure("avx2_mhz", case.look.duck.domain)
    frequencies = case.look.frequencies.value
    return frequencies.sustained_mhz / figure.median if figure and frequencies else None


def clocks_slowly(case: Case) -> Evidence | None:
    figure = case.look.baseline.figure("avx2_mhz", case.look.duck.domain)
    frequencies = case.look.frequencies
    if figure is None or frequencies.value is None or not is_slow(frequencies.value.sustained_mhz, figure):
        return None
    mhz = frequencies.value.sustained_mhz
    return case.says(frequencies, f"sustains {mhz:.0f} MHz, {mhz / figure.median:.0%} of the fleet's median")


def cores_are_missing(case: Case) -> Evidence | None:
    frequencies, expected = case.look.frequencies, case.look.baseline.expect.num_cores
    online = frequencies.value.num_online if frequencies.value else None
    if online is None or expected is None or online >= expected:
        return None
    return case.says(frequencies, f"{online} of {expected} cores are online")


def _kernels_were_measured(case: Case) -> bool:
    return bool(case.look.kernels.value and len(case.look.kernels.value) >= MIN_RUNS)


def slow(case: Case) -> tuple[Evidence, ...]:
    """Two slow runs, or a clock held down for minutes, or cores that are not there, or memory clocked too low."""
    signs = (kernels_slow(case), memory_reads_slowly(case), clocks_slowly(case), cores_are_missing(case))
    shown = tuple(sign for sign in signs if sign)
    settings = (limit_is_low(case), settings_hold_it_back(case)) if clocks_fully(case) is None else ()
    if not shown and not _kernels_were_measured(case):
        shown = tuple(sign for sign in settings if sign)
    return shown


def limit_is_low(case: Case) -> Evidence | None:
    power, expected = case.look.power, case.look.baseline.expect.power_limit_uw
    limit = power.value.holding_uw if power.value else None
    if power.value is None or limit is None or expected is None or limit >= FLOOR * expected:
        return None
    text = f"{limit / 1e6:g} W by {power.value.holding_interface}, {expected / 1e6:g} W expected"
    return case.says(power, text)


def limit_is_as_expected(case: Case) -> Evidence | None:
    power, expected = case.look.power, case.look.baseline.expect.power_limit_uw
    limit = power.value.holding_uw if power.value else None
    if limit is None or expected is None or limit < FLOOR * expected:
        return None
    return case.says(power, f"{limit / 1e6:g} W, as expected")


def throttles_hot(case: Case) -> Evidence | None:
    """At the chip's limit, or at one set lower while the others are much cooler."""
    heat, figure = case.look.heat, case.look.baseline.figure("package_temp_c")
    if heat.value is None or (heat.value.throttled or 0) < FEW_THROTTLES or heat.value.load_c is None:
        return None
    at_a_lower_limit = figure is not None and heat.value.load_c >= max(HOT_C - WARMER_C, figure.median + 1.5 * WARMER_C)
    if heat.value.load_c < HOT_C and not at_a_lower_limit:
        return None
    return case.says(heat, f"{heat.value.load_c:.0f} °C under load, throttled {heat.value.throttled} times")


def throttles_unmeasured(case: Case) -> Evidence | None:
    heat = case.look.heat
    if heat.value is None or heat.value.load_c is not None or (heat.value.throttled or 0) < FEW_THROTTLES:
        return None
    return case.says(heat, f"throttled {heat.value.throttled} times; how hot it was is not known")


def throttles_cool(case: Case) -> Evidence | None:
    heat = case.look.heat
    if heat.value is None or heat.value.load_c is None or (heat.value.throttled or 0) < FEW_THROTTLES:
        return None
    if heat.value.load_c >= HOT_C - WARMER_C:
        return None
    return case.says(heat, f"throttled {heat.value.throttled} times at {heat.value.load_c:.0f} °C: not its own heat")


def stays_cool(case: Case) -> Evidence | None:
    heat, figure = case.look.heat, case.look.baseline.figure("package_temp_c")
    if heat.value is None or heat.value.load_c is None or heat.value.throttled:
        return None
    usual = figure.median if figure else 70.0
    if heat.value.load_c > usual + WARMER_C:
        return None
    return case.says(heat, f"{heat.value.load_c:.0f} °C under load, never throttled")


def log_tells_of_heat(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("heat_throttle", "heat_shutdown") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def clock_fell_early_and_cool(case: Case) -> Evidence | None:
    frequencies = case.look.frequencies
    if frequencies.value is None or stays_cool(case) is None:
        return None
    settled = frequencies.value.settled_at_s
    if settled is None or settled > EARLY_S:
        return None
    return case.says(
        frequencies, f"falls to {frequencies.value.sustained_mhz:.0f} MHz within {settled} s, and stays cool"
    )


def clock_fell_slowly(case: Case) -> Evidence | None:
    frequencies = case.look.frequencies
    settled = frequencies.value.settled_at_s if frequencies.value else None
    if frequencies.value is None or settled is None or settled <= EARLY_S:
        return None
    return case.says(frequencies, f"falls to {frequencies.value.sustained_mhz:.0f} MHz over {settled} s")


def hotter_than_others(case: Case) -> Evidence | None:
    heat, figure = case.look.heat, case.look.baseline.figure("package_temp_c")
    if (
        heat.value is None
        or heat.value.load_c is None
        or figure is None
        or heat.value.load_c < figure.median + 1.5 * WARMER_C
    ):
        return None
    return case.says(heat, f"{heat.value.load_c:.0f} °C under load, the others {figure.median:.0f} °C")


def clock_low_from_the_start(case: Case) -> Evidence | None:
    frequencies, share = case.look.frequencies, _share_of_frequency(case)
    if frequencies.value is None or share is None or share >= FLOOR or frequencies.value.settled_at_s is not None:
        return None
    return case.says(frequencies, f"{frequencies.value.first_mhz:.0f} MHz from the first second on")


def one_core_lags(case: Case) -> Evidence | None:
    frequencies = case.look.frequencies
    slowest = frequencies.value.slowest_mhz if frequencies.value else None
    if frequencies.value is None or slowest is None or slowest >= ONE_CORE_LAGS * frequencies.value.sustained_mhz:
        return None
    return case.says(
        frequencies, f"one core sustains {slowest:.0f} MHz, the others {frequencies.value.sustained_mhz:.0f}"
    )


def clocks_fully(case: Case) -> Evidence | None:
    share = _share_of_frequency(case)
    if share is None or share < FULL_SPEED:
        return None
    return case.says(case.look.frequencies, f"sustains {share:.0%} of the fleet's frequency")


def settings_hold_it_back(case: Case) -> Evidence | None:
    frequencies = case.look.frequencies
    if frequencies.value is None or clocks_fully(case) is not None:
        return None
    held = []
    if frequencies.value.turbo is False:
        held.append("turbo is off")
    if frequencies.value.governor and frequencies.value.governor != "performance":
        held.append(f"governor {frequencies.value.governor}")
    if frequencies.value.preference in ("power", "balance_power"):
        held.append(f"energy preference {frequencies.value.preference}")
    figure = case.look.baseline.figure("avx2_mhz")
    limit = frequencies.value.scaling_max_khz
    if figure and limit and limit < FLOOR * figure.median * 1000:
        held.append(f"highest frequency set to {limit // 1000} MHz")
    return case.says(frequencies, ", ".join(held)) if held else None


def memory_clocked_low(case: Case) -> Evidence | None:
    smbios, expected = case.look.smbios, case.look.baseline.expect.ram_mt_per_s
    if smbios.value is None or expected is None:
        return None
    speeds = [slot.configured_mt_per_s or slot.rated_mt_per_s for slot in smbios.value.modules]
    known = [speed for speed in speeds if speed]
    if not known or min(known) >= 0.98 * expected:
        return None
    rated = min((slot.rated_mt_per_s for slot in smbios.value.modules if slot.rated_mt_per_s), default=None)
    return case.says(smbios, f"runs at {min(known)} MT/s (rated {rated or '?'}), {expected} expected")


def memory_clocked_right(case: Case) -> Evidence | None:
    smbios, expect = case.look.smbios, case.look.baseline.expect
    if smbios.value is None or expect.ram_mt_per_s is None or not smbios.value.modules:
        return None
    if memory_clocked_low(case) is not None:
        return None
    return case.says(smbios, f"modules run at {expect.ram_mt_per_s} MT/s, as expected")


def memory_as_fast_as_others(case: Case) -> Evidence | None:
    bandwidth, figure = case.look.bandwidth, case.look.baseline.figure("read_bytes_per_s")
    last = bandwidth.value[-1].read_bytes_per_s if bandwidth.value else None
    if last is None or figure is None or last < FULL_SPEED * figure.median:
        return None
    return case.says(bandwidth, f"reads memory at {last / figure.median:.0%} of the fleet's median")


def busy_before_the_load(case: Case) -> Evidence | None:
    heat = case.look.heat
    if heat.value is None or heat.value.idle_c is None or heat.value.load_c is None or heat.value.throttled:
        return None
    if heat.value.idle_c < REST_C + BUSY_C or heat.value.load_c - heat.value.idle_c > WARMER_C:
        return None
    return case.says(
        heat, f"{heat.value.idle_c:.0f} °C before the load, {heat.value.load_c:.0f} °C under it: not at rest before"
    )


def draws_less_than_others(case: Case) -> Evidence | None:
    plug = case.plug
    if plug is None or plug.watts is None or not plug.neighbours_watts:
        return None
    usual = sorted(plug.neighbours_watts)[len(plug.neighbours_watts) // 2]
    if plug.watts >= 0.75 * usual:
        return None
    return case.seen_outside("plug", f"{plug.watts:g} W under load, its neighbours draw {usual:g} W", plug.at)


def fan_stands_still(case: Case) -> Evidence | None:
    return case.seen_outside("person", "its fan stands still") if case.answer("fan") == "still" else None


def prochot_in_log(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("prochot") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def memory_set_low(case: Case) -> tuple[Evidence, ...]:
    """The firmware says so, and the bandwidth does not say otherwise."""
    low = memory_clocked_low(case)
    return (low,) if low and not memory_as_fast_as_others(case) else ()


def hot(case: Case) -> tuple[Evidence, ...]:
    return tuple(sign for sign in (throttles_hot(case), fan_stands_still(case)) if sign)


SYMPTOMS = (
    Symptom(
        "slow",
        "computes slower than the others",
        Severity.DEGRADED,
        slow,
        {
            "cpu_power_limit": 0.24,
            "cpu_thermal": 0.24,
            "cpu_slow_other": 0.25,
            "dimm_slow": 0.25,
            "bios_outdated": 0.02,
        },
        (
            Clue(limit_is_low, {"cpu_power_limit": STRONG}, rest=RARELY),
            Clue(limit_is_as_expected, {"cpu_power_limit": RARELY}),
            Clue(draws_less_than_others, {"cpu_power_limit": SOME, "cpu_thermal": LESS}),
            Clue(throttles_hot, {"cpu_thermal": STRONG}, rest=RARELY),
            Clue(throttles_unmeasured, {"cpu_thermal": GOOD}),
            Clue(log_tells_of_heat, {"cpu_thermal": SOME}),
            Clue(fan_stands_still, {"cpu_thermal": STRONG}),
            Clue(throttles_cool, {"cpu_slow_other": STRONG, "cpu_thermal": RARELY}),
            Clue(prochot_in_log, {"cpu_slow_other": GOOD}),
            Clue(stays_cool, {"cpu_thermal": HARDLY}),
            Clue(clock_fell_early_and_cool, {"cpu_power_limit": GOOD, "dimm_slow": RARELY}),
            Clue(clock_fell_slowly, {"cpu_thermal": GOOD, "cpu_power_limit": LESS}),
            Clue(hotter_than_others, {"cpu_thermal": SOME}),
            Clue(clock_low_from_the_start, {"cpu_slow_other": GOOD, "dimm_slow": RARELY, "cpu_power_limit": LESS}),
            Clue(clocks_fully, {"cpu_power_limit": HARDLY, "cpu_thermal": HARDLY, "dimm_slow": SOME}),
            Clue(settings_hold_it_back, {"cpu_slow_other": STRONG}),
            Clue(cores_are_missing, {"cpu_slow_other": DECISIVE}),
            Clue(one_core_lags, {"cpu_slow_other": STRONG, "dimm_slow": RARELY}),
            Clue(memory_clocked_low, {"dimm_slow": STRONG}),
            Clue(memory_clocked_right, {"dimm_slow": HARDLY}),
            Clue(memory_reads_slowly, {"dimm_slow": SOME}),
            Clue(memory_as_fast_as_others, {"dimm_slow": RARELY}),
            Clue(busy_before_the_load, {"cpu_slow_other": STRONG}),
            Clue(firmware_older, {"bios_outdated": GOOD}),
        ),
    ),
    Symptom(
        "memory_set_low",
        "its memory runs at a lower speed than the fleet's",
        Severity.REPAIR,
        memory_set_low,
        {"dimm_slow": 0.95, "bios_outdated": 0.05},
        (),
        part_of=("slow",),
    ),
    Symptom(
        "hot",
        "gets too hot",
        Severity.DEGRADED,
        hot,
        {"cpu_thermal": 0.97, "cpu_slow_other": 0.03},
        (Clue(throttles_hot, {"cpu_thermal": GOOD}), Clue(fan_stands_still, {"cpu_thermal": STRONG})),
        part_of=("slow", "silent_after_wake", "went_silent"),
    ),
)
