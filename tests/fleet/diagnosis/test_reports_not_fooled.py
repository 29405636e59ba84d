"""Inputs that must not fool it, as duckd's report brings them: each on a duck that is well but for it."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from duckfleet.fleet.diagnosing import diagnose_ducks, looks_at
from duckfleet.fleet.diagnosis import Diagnosis
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store
from tests.fleet.diagnosis.reports import NUM_DUCKS, fresh_clock, mac, probe, report

MHZ = 2900.0


def measured(i: int) -> dict[str, Any]:
    """A report with everything that a probe measures."""
    values = fresh_clock(copy.deepcopy(report(i)))
    values["cpu"] |= {"online": "0-3", "governor": "performance"}
    values["memory"]["controllers"] = []
    values["machine_checks"] = {"exceptions": 0, "polls": 20}
    values["heat"] = {
        "zones": [{"type": "x86_pkg_temp", "celsius": 42.0}],
        "throttled": {"cpu0/core_throttle_count": 0},
    }
    values["heat_loaded"] = {
        "zones": [{"type": "x86_pkg_temp", "celsius": 63.0}],
        "throttled": {"cpu0/core_throttle_count": 0},
    }
    values["power_limits"] = [
        {"interface": name, "constraint": "long_term", "limit_uw": 20_000_000, "enabled": True}
        for name in ("intel-rapl", "intel-rapl-mmio")
    ]
    values["storage"] = [room("/", 60 << 30, 30 << 30), room("/var/lib/duckfleet", 30 << 30, 29 << 30)]
    values["measured"] = {"frequency": {"samples": [{"at_s": at, "mhz": [MHZ + i] * 4} for at in (0.06, 0.12, 0.18)]}}
    values["memory_test"] = {"tested_bytes": 28 << 30, "patterns": ["random"], "num_errors": 0, "errors": []}
    way = {"sent": 600, "received": 600, "duplicates": 0}
    values["burst"] = {"to_duck": way, "from_duck": way, "rtt_us": {"p50": 60.0, "p99": 100.0}, "mtu_passed": 9000}
    card = values["nics"][0]
    card |= {"device_gone": False, "driver_counters": {"rx_crc_errors": 0, "tx_timeout_count": 0}}
    values["load"] = {"before": [copy.deepcopy(card)], "after": [copy.deepcopy(card)], "host": {}}
    values["kernel_log"] = "<6>[    0.000000] Linux version 6.12.30\n<6>[    6.4] igc 0000:01:00.0: NIC Link is Up\n"
    return values


def room(path: str, total: int, available: int) -> dict[str, Any]:
    inodes = {"total_inodes": 1000, "available_inodes": 900}
    return {"path": path, "read_only": False, "total_bytes": total, "available_bytes": available, **inodes}


@pytest.fixture(autouse=True)
def peers(store: Store) -> None:
    for i in range(1, NUM_DUCKS + 1):
        for _ in range(2):
            probe(store, i, measured(i), 22e9 + i * 1e7)


def diagnosis_of(site: Site, store: Store, values: dict[str, Any]) -> Diagnosis:
    """Of duck 1, whose latest probe said this."""
    probe(store, 1, values, 22e9)
    return diagnose_ducks(site, store, [site.ducks[0]])[mac(1)]


def test_a_well_duck_is_well_and_everything_was_read(site: Site, store: Store) -> None:
    diagnosis = diagnosis_of(site, store, measured(1))
    assert diagnosis.findings == () and diagnosis.unknown == ()
    look = looks_at(site, store, [site.ducks[0]])[mac(1)]
    for name in ("edac", "machine_checks", "pattern_test", "burst", "power", "heat", "frequencies", "kernel_log",
                 "storage", "counters", "link", "smbios", "rtc_status", "bandwidth"):  # fmt: skip
        assert getattr(look, name).value is not None, name
        assert getattr(look, name).at is not None


def test_modules_in_other_units_add_up(site: Site, store: Store) -> None:
    """duckd reads bytes from the firmware's own table, however that counts; sizes that are no number are unknown."""
    values = measured(1)
    values["memory"]["modules"] = [
        {"locator": "A", "size_bytes": 32 << 30},
        {"locator": "B", "size_bytes": None},
        {"locator": "C", "size_bytes": "16 GB"},
    ]
    assert diagnosis_of(site, store, values).top_cause == "none"


def test_a_full_tmp_is_no_full_store(site: Site, store: Store) -> None:
    values = measured(1)
    values["storage"].append(room("/tmp", 1 << 30, 0))
    assert diagnosis_of(site, store, values).top_cause == "none"
    values["storage"][1] = room("/var/lib/duckfleet", 30 << 30, 0)
    assert diagnosis_of(site, store, values).top_cause == "storage_full"


@pytest.mark.parametrize(
    "part", ["heat", "heat_loaded", "power_limits", "machine_checks", "storage", "measured", "memory_test", "burst",
             "kernel_log", "load", "nics", "clock", "board", "memory", "cpu"]
)  # fmt: skip
@pytest.mark.parametrize("said", ["missing", "null", "rubbish", "unknown"])
def test_what_could_not_be_read_is_neither_good_nor_bad(site: Site, store: Store, part: str, said: str) -> None:
    values = measured(1)
    del values[part]
    if said != "missing":
        values[part] = {"null": None, "rubbish": [1, "x", {"celsius": "hot"}, None], "unknown": None}[said]
    if said == "unknown":
        values["unknown"] = [{"what": part, "reason": "not found"}]
    diagnosis = diagnosis_of(site, store, values)
    assert diagnosis.top_cause == "none" and not diagnosis.is_to_be_held


def test_a_battery_that_says_okay_with_a_clock_of_the_year_2000(site: Site, store: Store) -> None:
    values = measured(1)
    values["clock"] |= {"batt_status": "okay", "rtc_date": "2000-01-01", "rtc_time": "00:03:10"}
    assert diagnosis_of(site, store, values).top_cause == "dead_cmos_battery"


def test_a_clock_that_only_standby_power_keeps(site: Site, store: Store) -> None:
    """It is right now; at its last start after a loss of mains it was not."""
    lost = {"because": "reported", "uptime_s": "30", "rtc_read_uptime_s": "2", "rtc_since_epoch": "946684800"}
    right_s = datetime.now(UTC).timestamp() - 30
    kept = {**lost, "rtc_since_epoch": str(int(right_s))}
    for event, evidence in (("power_cut", {"ac": "lost"}), ("answered", lost), ("answered", kept)):
        store.transition(site.ducks[0], event, evidence, lambda *_: "up")
    diagnosis = diagnosis_of(site, store, measured(1))
    assert diagnosis.top_cause == "dead_cmos_battery"


def test_an_interface_that_shows_up_with_its_device_gone(site: Site, store: Store) -> None:
    values = measured(1)
    values["nics"][0] |= {"device_gone": True, "operstate": "up", "carrier": 1}
    assert diagnosis_of(site, store, values).top_cause == "nic_fault"


@pytest.mark.parametrize("before", [2**16 - 1, 2**32 - 1, 2**64 - 1])
def test_counters_that_wrapped_rose_by_little(site: Site, store: Store, before: int) -> None:
    values = measured(1)
    values["load"]["before"][0]["driver_counters"]["rx_crc_errors"] = before
    values["load"]["after"][0]["driver_counters"]["rx_crc_errors"] = 1
    assert diagnosis_of(site, store, values).top_cause == "none"


def test_counters_that_rose_under_load_are_a_bad_cable(site: Site, store: Store) -> None:
    values = measured(1)
    values["load"]["after"][0]["driver_counters"]["rx_crc_errors"] = 90
    assert diagnosis_of(site, store, values).top_cause == "cable_bad"


def test_a_clock_that_is_set_during_the_probe(site: Site, store: Store) -> None:
    """The duck's own times jump by years; what counts is the host's time, and clocks that nobody sets."""
    values = measured(1)
    values |= {"started_at_s": 946_684_800.0, "finished_at_s": datetime.now(UTC).timestamp() + 7 * 86400, "took_s": 1.2}
    values["burst"]["rtt_us"]["max"] = 2.5e13
    values["kernel_log"] += "<5>[  420.1] systemd-journald[221]: Time jumped backwards, rotating.\n"
    assert diagnosis_of(site, store, values).top_cause == "none"


@pytest.mark.parametrize("serial", ["00000000", "FFFFFFFF", "ff:ff:ff:ff", "0", "", "Default string", None])
def test_serial_numbers_that_are_none(site: Site, store: Store, serial: str | None) -> None:
    values = measured(1)
    values["board"]["product_serial"] = serial
    for module in values["memory"]["modules"]:
        module["serial"] = serial
    assert diagnosis_of(site, store, values).top_cause == "none"


def test_no_memory_controller_is_not_zero_errors(site: Site, store: Store) -> None:
    values = measured(1)
    probe(store, 1, values)
    look = looks_at(site, store, [site.ducks[0]])[mac(1)]
    assert look.edac.value is not None and look.edac.value.controllers == ()
    values["memory"]["controllers"] = [{"name": "mc0", "corrected": 400, "uncorrected": 0}]
    assert diagnosis_of(site, store, values).top_cause == "dimm_faulty"


def test_the_lower_of_two_power_limits_holds(site: Site, store: Store) -> None:
    values = measured(1)
    values["power_limits"][1]["limit_uw"] = 6_000_000
    probe(store, 1, values)
    look = looks_at(site, store, [site.ducks[0]])[mac(1)]
    assert look.power.value is not None
    assert (look.power.value.holding_uw, look.power.value.holding_interface) == (6_000_000, "intel-rapl-mmio")


def test_a_processor_that_is_held_down(site: Site, store: Store) -> None:
    values = measured(1)
    values["measured"]["frequency"]["samples"] = [{"at_s": at, "mhz": [700.0] * 4} for at in (0.06, 0.12, 0.18)]
    diagnosis = diagnosis_of(site, store, values)
    assert [finding.code for finding in diagnosis.findings] == ["slow"]
    assert diagnosis.top_cause == "cpu_slow_other"


def test_slow_kernels_on_two_runs(site: Site, store: Store) -> None:
    def computing(i: int, rate: float) -> dict[str, Any]:
        values = measured(i)
        # The first seconds are the turbo's; the later half counts.
        values["measured"]["kernels"] = {"gb_per_s": {"fp9_gemv": [21.0, 21.0, rate, rate]}}
        return values

    for _ in range(2):
        for i in range(2, NUM_DUCKS + 1):
            probe(store, i, computing(i, 19.9 + i / 100))
    assert diagnosis_of(site, store, computing(1, 15.0)).top_cause == "none"  # one run may have had company
    diagnosis = diagnosis_of(site, store, computing(1, 15.1))
    assert [finding.code for finding in diagnosis.findings] == ["slow"]


def test_ducks_that_share_a_machine_are_not_compared_by_speed(site: Site, store: Store) -> None:
    values = measured(1)
    values["nics"][0]["mac"] = "02:00:00:00:00:99"
    values["measured"]["frequency"]["samples"] = [{"at_s": 0.06, "mhz": [300.0]}]
    values["kernel_log"] += "<3>[  420.1] Out of memory: Killed process 77 (duckd)\n"
    diagnosis = diagnosis_of(site, store, values)
    assert diagnosis.top_cause == "none"
    assert any("a process" in unknown.reason for unknown in diagnosis.unknown)
