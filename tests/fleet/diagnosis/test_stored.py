"""From the store's records to a diagnosis: duckd's probe reports, the event log, the fleet's own baseline."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.cli import run
from duckfleet.fleet.diagnosing import diagnose_ducks
from duckfleet.fleet.diagnosis import Diagnosis
from duckfleet.inventory.site import Site
from duckfleet.inventory.store import Store
from tests.fleet.diagnosis.reports import NOW_S, NUM_DUCKS, fresh_clock, mac, probe, report


def of_first(site: Site, store: Store, values: dict[str, Any] | None, *runs: float) -> Diagnosis:
    """Duck 1 with this report and these bandwidths, the others well."""
    for i in range(2, NUM_DUCKS + 1):
        for _ in range(2):
            probe(store, i, report(i), 22e9 + i * 1e7)
    for value in runs or (22e9, 22e9):
        if values is not None:
            probe(store, 1, values, value)
    duck = site.ducks[0]
    return diagnose_ducks(site, store, [duck])[duck.mac]


def changed(**parts: Any) -> dict[str, Any]:
    values = copy.deepcopy(report(1))
    for name, fields in parts.items():
        values[name].update(fields) if isinstance(values.get(name), dict) else values.__setitem__(name, fields)
    return values


def test_clean_duck_has_no_finding(site: Site, store: Store) -> None:
    diagnosis = of_first(site, store, fresh_clock(report(1)))
    assert [finding.code for finding in diagnosis.findings] == []


def test_missing_module_by_the_others_own_baseline(site: Site, store: Store) -> None:
    modules = [{"locator": "DIMM0", "size_bytes": 16 << 30}, {"locator": "DIMM1", "size_bytes": 0}]
    values = fresh_clock(changed(memory={"total_bytes": 16_100_000 * 1024, "modules": modules}))
    assert of_first(site, store, values).top_cause == "dimm_missing"


def test_missing_module_though_the_firmware_cannot_be_read(site: Site, store: Store) -> None:
    values = fresh_clock(
        changed(memory={"total_bytes": 16_100_000 * 1024, "modules": None}, board={"product_name": None})
    )
    values["board"] = {}
    assert of_first(site, store, values).top_cause == "dimm_missing"


def test_slow_link(site: Site, store: Store) -> None:
    values = fresh_clock(report(1))
    values["nics"][0]["speed_mbit_per_s"] = 1000
    assert of_first(site, store, values).top_cause == "cable_bad"


def test_slow_memory_on_two_runs(site: Site, store: Store) -> None:
    diagnosis = of_first(site, store, fresh_clock(report(1)), 16e9, 16.1e9)
    assert [finding.code for finding in diagnosis.findings] == ["slow"]


def test_slow_memory_on_one_run_is_nothing(site: Site, store: Store) -> None:
    assert of_first(site, store, fresh_clock(report(1)), 22e9, 16e9).top_cause == "none"


def test_lost_clock(site: Site, store: Store) -> None:
    values = report(1)
    values["clock"] |= {"rtc_date": "2000-01-01", "rtc_time": "00:10:00"}
    assert of_first(site, store, values).top_cause == "dead_cmos_battery"


def test_lossy_link_by_the_raw_texts_beside_the_report(site: Site, store: Store) -> None:
    burst = (
        '{"to_duck": {"sent": 1000, "received": 950}, "from_duck": {"sent": 1000, "received": 1000},'
        ' "rtt_us": {"p50": 400}, "mtu_passed": 9000}'
    )
    values = {**fresh_clock(report(1)), "texts": {"burst.json": burst}}
    assert of_first(site, store, values).top_cause == "packet_loss_congestion"


def test_broken_frames_between_two_probes_of_one_boot(site: Site, store: Store) -> None:
    values = fresh_clock(report(1))
    probe(store, 1, values)
    after = copy.deepcopy(values)
    after["nics"][0]["counters"] |= {"rx_packets": 9000, "rx_crc_errors": 400}
    assert of_first(site, store, after, 22e9).top_cause == "cable_bad"


def test_failed_probe_concludes_nothing(site: Site, store: Store) -> None:
    store.transition(site.ducks[0], "answered", {}, lambda _state, _event: "up")
    store.add_probe_run(mac(1), NOW_S, "unknown", {}, error="timed out after 30 s")
    diagnosis = of_first(site, store, None)
    assert diagnosis.top_cause == "unknown_insufficient" and not diagnosis.is_to_be_held
    assert "timed out" in diagnosis.unknown[0].reason


def test_process_duck_without_a_card_of_its_own_has_no_bad_card(site: Site, store: Store) -> None:
    values = fresh_clock(report(1))
    values["nics"] = [{"name": "eth0", "mac": "02:00:00:00:00:99", "carrier": 1, "mtu": 1500}]
    diagnosis = of_first(site, store, values)
    assert diagnosis.top_cause == "none"
    assert any("no interface" in unknown.reason for unknown in diagnosis.unknown)


def test_report_of_the_boot_image_is_a_reading_of_the_clock(site: Site, store: Store) -> None:
    """The image reads the RTC before anything sets it, and says how long ago."""
    evidence = {"because": "reported", "uptime_s": "30.0", "rtc_read_uptime_s": "2.0", "rtc_since_epoch": "946684800"}
    store.transition(site.ducks[0], "answered", evidence, lambda _state, _event: "up")
    diagnosis = of_first(site, store, fresh_clock(report(1)))
    assert diagnosis.top_cause == "dead_cmos_battery"
    assert "2000-01-01" in diagnosis.findings[0].evidence[0].text


def test_request_without_an_answer_in_the_event_log(site: Site, store: Store) -> None:
    duck = site.ducks[0]
    store.transition(duck, "power_cut", {"how": "poweroff"}, lambda *_: "off")
    store.transition(duck, "wake_sent", {}, lambda *_: "waking")
    ignored = {"because": "dhcp_ignored", "stage": "firmware", "reason": "no address available", "domain": "1"}
    store.transition(duck, "dhcp_seen", ignored, lambda *_: "dhcp")
    store.transition(duck, "timed_out", {"in_state": "dhcp"}, lambda *_: "lost")
    assert of_first(site, store, None).top_cause == "image_or_dhcp_server"


def test_commands_print_the_reasoning_and_the_walk(
    site: Site, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = fresh_clock(report(1))
    values["nics"][0]["speed_mbit_per_s"] = 1000
    of_first(site, store, values)
    store.close()
    options = ["--state", str(tmp_path), "--site", str(site.path)]
    assert run([*options, "explain", "d1-101"]) == 3
    assert "cable_bad" in capsys.readouterr().out
    assert run([*options, "workorder"]) == 3
    out = capsys.readouterr().out
    assert "A1" in out and "network cable" in out
    assert run([*options, "workorder", "d1-102", "--json"]) in (0, 3)


def test_explaining_a_folder_of_raw_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.fleet.diagnosis.boxes import ethtool, healthy

    for name, text in {**healthy(), "ethtool.txt": ethtool("1000Mb/s", partner="2500baseT/Full")}.items():
        (tmp_path / name).write_text(text)
    assert run(["--state", str(tmp_path), "explain", "--texts", str(tmp_path), "--json"]) == 3
    assert '"top_cause": "cable_bad"' in capsys.readouterr().out
    assert run(["--state", str(tmp_path), "explain", "--texts", str(tmp_path / "none")]) == 2


def held_to(*limits_uw: int) -> list[dict[str, Any]]:
    """Long-term limits of the package by both interfaces, as duckd reports them."""
    names = ("intel-rapl", "intel-rapl-mmio")
    return [
        {"interface": name, "constraint": "long_term", "limit_uw": limit, "enabled": True}
        for name, limit in zip(names, limits_uw, strict=True)
    ]


def test_lower_power_limit_than_the_others_have(site: Site, store: Store) -> None:
    """The site file says nothing of it: what most boxes with this CPU have is expected of each."""
    for i in range(1, NUM_DUCKS + 1):
        for _ in range(2):
            values = fresh_clock(
                {**report(i), "power_limits": held_to(20_000_000, 6_000_000 if i == 1 else 20_000_000)}
            )
            probe(store, i, values, 13e9 if i == 1 else 22e9 + i * 1e7)
    found = diagnose_ducks(site, store, site.ducks)
    assert found[mac(1)].top_cause == "cpu_power_limit"
    assert {found[mac(i)].top_cause for i in range(2, NUM_DUCKS + 1)} == {"none"}


def test_power_limit_of_another_cpu_is_its_own(site: Site, store: Store) -> None:
    for i in range(1, NUM_DUCKS + 1):
        values = fresh_clock({**report(i), "power_limits": held_to(20_000_000, 20_000_000)})
        if i == 1:
            values |= {"cpu": {"model": "N95", "num_cpus": 4}, "power_limits": held_to(15_000_000, 15_000_000)}
        probe(store, i, values)
    assert diagnose_ducks(site, store, [site.ducks[0]])[mac(1)].top_cause == "none"
