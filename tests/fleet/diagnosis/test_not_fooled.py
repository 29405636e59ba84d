"""Inputs that must not fool the diagnosis, each a test of its own, on a box that is healthy but for them."""

from __future__ import annotations

import json

import pytest

from tests.fleet.diagnosis.boxes import (
    MAC,
    bandwidth,
    burst,
    codes,
    cpufreq,
    diagnosis_of,
    dmidecode,
    ethtool,
    event,
    healthy,
    ip_link,
    kernels,
    mains_lost,
    rapl,
    rtc_reading,
    rtc_status,
    statistics,
    thermal,
    unknown_sources,
)


def test_healthy_box_has_no_finding_and_nothing_unknown() -> None:
    diagnosis = diagnosis_of({})
    assert diagnosis.top_cause == "none" and not diagnosis.findings and not diagnosis.unknown


def test_mixed_units_in_dmidecode_add_up() -> None:
    assert diagnosis_of({"dmidecode.txt": dmidecode("16384 MB", "16 GB")}).top_cause == "none"


def test_mixed_units_with_an_empty_slot_are_a_missing_module() -> None:
    changes = {
        "dmidecode.txt": dmidecode("16384 MB", "No Module Installed"),
        "meminfo.txt": "MemTotal:       16100000 kB\n",
    }
    diagnosis = diagnosis_of(changes)
    assert codes(diagnosis) == ["memory_short"] and diagnosis.top_cause == "dimm_missing"


def test_full_tmp_is_no_full_store_and_makes_its_test_unknown() -> None:
    table = (
        "Filesystem     1B-blocks        Used   Available Use% Mounted on\n"
        "/dev/nvme0n1p2 60000000000 30000000000 30000000000  50% /\n"
        "tmpfs           1000000000  1000000000           0 100% /tmp\n"
        "/dev/loop0        60000000    60000000           0 100% /snap/core22\n"
    )
    said = "sh: 1: cannot create /tmp/memtest.out: No space left on device\n"
    diagnosis = diagnosis_of({"df.txt": table, "memtest.txt": said})
    assert diagnosis.top_cause == "none"
    assert unknown_sources(diagnosis) == {"pattern test"}


def test_full_store_is_told_from_a_full_tmp() -> None:
    table = (
        "Filesystem  1B-blocks       Used Available Use% Mounted on\n"
        "/dev/sda1 60000000000 60000000000        0 100% /\n"
        "tmpfs      1000000000        1000 999999000   1% /tmp\n"
    )
    assert diagnosis_of({"df.txt": table}).top_cause == "storage_full"


@pytest.mark.parametrize("name", sorted(healthy().keys() - {"duck.json", "fleet.json", "events.txt", "outside.json"}))
@pytest.mark.parametrize(
    "said",
    [
        "sh: 1: dmidecode: not found\n",
        "probe: timed out after 30 s\n",
        "",
        "HTTP/1.1 400 Bad Request\n\n<HTML>\n",
        '{"error": "no"}',
    ],
)
def test_missing_probe_binary_is_unknown_and_neither_good_nor_bad(name: str, said: str) -> None:
    diagnosis = diagnosis_of({name: said})
    assert diagnosis.top_cause == "none" and not diagnosis.is_to_be_held
    assert len(diagnosis.unknown) == 1


def test_all_probes_failed_is_insufficient_and_holds_nobody() -> None:
    kept = {"duck.json", "fleet.json", "events.txt", "outside.json"}
    diagnosis = diagnosis_of({name: "probe: timed out after 30 s" for name in healthy() if name not in kept})
    assert diagnosis.top_cause == "unknown_insufficient" and not diagnosis.is_to_be_held


def test_battery_okay_with_a_clock_of_the_year_2000_is_a_dead_battery() -> None:
    changes = {"rtc.txt": rtc_status("2000-01-01T04:00:09"), "rtc_reading.txt": rtc_reading("2000-01-01T00:00:08")}
    assert diagnosis_of(changes).top_cause == "dead_cmos_battery"


def test_battery_okay_proves_nothing_when_the_clock_was_set_since() -> None:
    assert diagnosis_of({"rtc_reading.txt": rtc_reading("2000-01-01T00:00:08")}).top_cause == "dead_cmos_battery"


def test_battery_dead_is_believed_though_the_clock_is_right() -> None:
    assert diagnosis_of({"rtc.txt": rtc_status(battery="dead")}).top_cause == "dead_cmos_battery"


def test_clock_that_is_right_only_by_standby_power_proves_no_battery() -> None:
    history = (
        event("2026-02-01T08:00:00", "up", "answered")
        + mains_lost("2026-02-20T04:00:00", "2026-02-20T04:30:00")
        + event("2026-02-20T05:00:00", "up", "answered")
        + event("2026-02-20T05:00:01", "up", "rtc_read", rtc="2018-01-01T00:02:00", host="2026-02-20T05:00:01+00:00")
    )
    diagnosis = diagnosis_of({"events.txt": history})
    assert diagnosis.top_cause == "dead_cmos_battery"
    assert "standby power" in diagnosis.findings[0].evidence[0].text


def test_clock_that_is_right_after_a_loss_of_mains_clears_the_battery() -> None:
    history = (
        mains_lost("2026-02-20T04:00:00", "2026-02-20T04:30:00")
        + event("2026-02-20T05:00:01", "up", "rtc_read", rtc="2018-01-01T00:02:00", host="2026-02-20T05:00:01+00:00")
        + event("2026-02-21T05:00:01", "up", "note", text="battery replaced")
        + event("2026-03-10T08:00:00", "up", "answered")
    )
    assert diagnosis_of({"events.txt": history}).top_cause == "none"


def test_clock_in_local_time_is_no_fault() -> None:
    reading = rtc_reading("2026-03-10T13:30:02", earlier=("2026-03-01T13:30:00", "2026-03-01T08:00:00"))
    assert diagnosis_of({"rtc_reading.txt": reading}).top_cause == "none"


def test_interface_that_shows_up_with_its_device_gone() -> None:
    changes = {
        "ethtool.txt": "Settings for enp1s0:\nnetlink error: No such device\nNo data available\n",
        "ethtool_s_before.txt": "Cannot get stats strings information: No such device\n",
        "ethtool_s_after.txt": "Cannot get stats strings information: No such device\n",
        "ip_link.txt": ip_link(),  # UP,LOWER_UP
        "burst.json": '{"error": "no answer from 20000 datagrams"}',
    }
    diagnosis = diagnosis_of(changes)
    assert diagnosis.top_cause == "nic_fault" and diagnosis.is_to_be_held


@pytest.mark.parametrize("before", [65534, 65535])
def test_counters_that_wrapped_at_16_bits_rose_by_little(before: int) -> None:
    changes = {
        "ethtool_s_before.txt": statistics(align_errors=before, rx_missed=before),
        "ethtool_s_after.txt": statistics(align_errors=1, rx_missed=0, rx_packets=1_020_000),
    }
    assert diagnosis_of(changes).top_cause == "none"


def test_counters_that_wrapped_at_32_bits_rose_by_little() -> None:
    changes = {
        "ethtool_s_before.txt": statistics(rx_packets=4294951123, tx_packets=4294960001, rx_crc_errors=4294967295),
        "ethtool_s_after.txt": statistics(rx_packets=4138, tx_packets=12855, rx_crc_errors=1),
    }
    assert diagnosis_of(changes).top_cause == "none"


def test_counters_that_began_anew_count_from_there() -> None:
    changes = {
        "ethtool_s_before.txt": statistics(rx_packets=32_000_000, tx_packets=15_000_000, rx_crc_errors=19_000),
        "ethtool_s_after.txt": statistics(rx_packets=20469, tx_packets=20130, rx_crc_errors=0),
    }
    assert diagnosis_of(changes).top_cause == "none"


def test_old_errors_that_do_not_rise_are_the_past() -> None:
    changes = {
        "ethtool_s_before.txt": statistics(rx_crc_errors=40_000),
        "ethtool_s_after.txt": statistics(rx_crc_errors=40_000, rx_packets=1_020_000),
    }
    assert diagnosis_of(changes).top_cause == "none"


def test_clock_stepping_during_the_probe() -> None:
    stepped = json.loads(burst())
    stepped["rtt_us"]["max"] = 2.52e10
    table = cpufreq(2900, 2899, 2901).rstrip() + "\n25320 2898 2900\n25800 2901 2899\n"
    log = healthy()["dmesg.txt"] + "[  420.1] systemd-journald[221]: Time jumped backwards, rotating.\n"
    changes = {
        "burst.json": json.dumps(stepped),
        "cpufreq.txt": table,
        "dmesg.txt": log,
        "rtc.txt": rtc_status("2026-03-10T05:00:00"),
    }
    assert diagnosis_of(changes).top_cause == "none"


@pytest.mark.parametrize("serial", ["00000000", "FFFFFFFF", "ffffffff-ffff-ffff", "Default string", ""])
def test_zeros_and_all_f_serial_numbers_are_nobodys_fault(serial: str) -> None:
    assert diagnosis_of({"dmidecode.txt": dmidecode("16 GB", "16 GB", serial=serial)}).top_cause == "none"


def test_ram_of_a_few_percent_less_is_firmware_and_graphics() -> None:
    assert diagnosis_of({"meminfo.txt": "MemTotal:       31100000 kB\n"}).top_cause == "none"


def test_one_slow_run_of_two_is_no_straggler() -> None:
    assert (
        diagnosis_of({"kernels.json": kernels(20.0, 16.0), "bandwidth.json": bandwidth(22e9, 17e9)}).top_cause == "none"
    )


def test_two_slow_runs_are_a_straggler() -> None:
    diagnosis = diagnosis_of({"kernels.json": kernels(16.0, 16.2)})
    assert codes(diagnosis) == ["slow"]


def test_power_limit_that_is_not_enabled_does_not_hold() -> None:
    assert diagnosis_of({"rapl.txt": rapl(mmio_uw=6_000_000, mmio_enabled=0)}).top_cause == "none"


def test_the_lower_of_two_power_limits_holds() -> None:
    changes = {
        "rapl.txt": rapl(mmio_uw=6_000_000),
        "cpufreq.txt": cpufreq(2900, 1700, 1700, 1700, 1701, 1700),
        "kernels.json": kernels(15.0, 15.0),
        "thermal.txt": thermal(load_c=50),
    }
    assert diagnosis_of(changes).top_cause == "cpu_power_limit"


def test_no_memory_controller_is_not_zero_errors() -> None:
    from duckfleet.fleet.diagnosis import look_from_texts

    edac = look_from_texts(healthy()).edac
    assert edac.value is not None and edac.value.controllers == ()


def test_memory_errors_by_name_only_are_none() -> None:
    log = healthy()["dmesg.txt"] + "[    5.0] EDAC igen6 MC0: HANDLING IBECC MEMORY ERROR\n" * 40
    assert diagnosis_of({"dmesg.txt": log}).top_cause == "none"


def test_wake_on_lan_off_is_seen_before_it_is_needed() -> None:
    diagnosis = diagnosis_of({"ethtool.txt": ethtool(wake="d")})
    assert diagnosis.top_cause == "wol_disabled" and not diagnosis.is_to_be_held


def test_another_macs_interface_up_does_not_hide_the_missing_one() -> None:
    diagnosis = diagnosis_of(
        {
            "ethtool.txt": None,
            "ip_link.txt": ip_link(mac="02:00:00:00:00:99").replace("enp1s0", "enx020000000099"),
        }
    )
    assert diagnosis.top_cause == "nic_fault"
    assert MAC in diagnosis.findings[0].evidence[0].text
