"""Parsers: what they read, and that any other text is `Unreadable` and never another error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources import raw
from duckfleet.fleet.diagnosis.sources.around import baseline, dhcp_log, duck, events, outside, wol
from duckfleet.fleet.diagnosis.sources.clock import cmos, rtc_readings, rtc_status
from duckfleet.fleet.diagnosis.sources.compute import bandwidth, cpufreq, kernels, rapl, thermal
from duckfleet.fleet.diagnosis.sources.link import burst, ethtool, ethtool_statistics, ip_link
from duckfleet.fleet.diagnosis.sources.memory import dmidecode, edac, mce, meminfo, memtest
from duckfleet.fleet.diagnosis.sources.system import df, dmesg
from tests.fleet.diagnosis import boxes


def unhurried(max_examples: int) -> settings:
    """Nothing here is timed: the machine may be busy with other things."""
    return settings(max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


PARSERS: tuple[Callable[[str], Any], ...] = (
    *(baseline.parse, dhcp_log.parse, duck.parse, events.parse, outside.parse, wol.parse),
    *(cmos.parse, rtc_readings.parse, rtc_status.parse),
    *(bandwidth.parse, cpufreq.parse, kernels.parse, rapl.parse, thermal.parse),
    *(burst.parse, ethtool.parse, ethtool_statistics.counters, ip_link.parse),
    *(dmidecode.parse, edac.parse, mce.parse, meminfo.parse, memtest.parse, df.parse, dmesg.parse),
)
each_parser = pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: f"{parse.__module__.split('.')[-1]}")
TEXTS = [text for name, text in sorted(boxes.healthy().items())]


@each_parser
@unhurried(25)
@given(
    text=st.one_of(st.text(max_size=200), st.sampled_from(TEXTS).flatmap(lambda text: st.just(text[: len(text) // 2])))
)
def test_any_text_is_read_or_unreadable(parse: Callable[[str], Any], text: str) -> None:
    try:
        parse(text)
    except Unreadable as reason:
        assert str(reason)


@each_parser
@unhurried(40)
@given(data=st.data())
def test_a_text_with_one_piece_replaced_is_read_or_unreadable(parse: Callable[[str], Any], data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from(["", "9" * 30, "-1", "NaN", "1e999", "\n\n", '"', "]", "0x", "٣", "\t\t"]))
    with contextlib.suppress(Unreadable):
        parse(text[:at] + piece + text[at + len(piece) :])


@each_parser
def test_a_shells_complaint_is_no_answer(parse: Callable[[str], Any]) -> None:
    with pytest.raises(Unreadable, match="nope"):
        parse("sh: 1: nope: not found\n")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    (
        *(
            "runs",
            "errors",
            "tested_bytes",
            "to_duck",
            "from_duck",
            "sent",
            "received",
            "rtt_us",
            "mtu_passed",
            "at",
            "now",
        ),
        *("switch", "plug", "person", "history", "watts", "since", "expect", "bios", "domains", "median", "gb_per_s"),
    )
)


@pytest.mark.parametrize(
    "parse", [burst.parse, bandwidth.parse, kernels.parse, memtest.parse, outside.parse, baseline.parse, duck.parse]
)
@unhurried(40)
@given(value=st.dictionaries(KEYS, JSON | st.dictionaries(KEYS, JSON, max_size=3), max_size=4))
def test_json_of_the_wrong_shape_is_read_or_unreadable(parse: Callable[[str], Any], value: dict[str, Any]) -> None:
    with contextlib.suppress(Unreadable):
        parse(json.dumps(value))


@unhurried(50)
@given(st.integers(min_value=0, max_value=10**11), st.sampled_from(["kB", "MB", "GB", "TB", "KiB", "MiB", "GiB"]))
def test_sizes_are_the_same_in_every_unit(size_kib: int, unit: str) -> None:
    factor = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30}[unit[0].lower()]
    assert dmidecode.size_mib(f"{size_kib // factor} {unit}") == size_kib // factor * factor >> 10


def test_dmidecode() -> None:
    board = dmidecode.parse(boxes.dmidecode("32768 MB", "No Module Installed", "Unknown", serial="FFFFFFFF"))
    assert [slot.size_mib for slot in board.slots] == [32768, 0, None]
    assert len(board.modules) == 1 and board.total_mib is None
    assert (board.product, board.serial, board.bios_version, board.bios_date) == ("Box", "", "1.08", date(2024, 3, 18))
    assert board.slots[0].configured_mt_per_s == 3200


@pytest.mark.parametrize(
    ("before", "after", "rise"), [(5, 9, 4), (65535, 0, 1), (4294967290, 4, 10), (2**64 - 1, 1, 2)]
)
def test_wrapped_counters(before: int, after: int, rise: int) -> None:
    assert ethtool_statistics.wrapped_rise(before, after) == rise


@unhurried(50)
@given(st.sampled_from([16, 32, 64]), st.integers(0, 1000), st.integers(1, 1000))
def test_a_wrap_of_any_width_is_undone(width: int, below: int, rise: int) -> None:
    before = (1 << width) - 1 - below
    after = (before + rise) % (1 << width)
    if after < before:
        assert ethtool_statistics.wrapped_rise(before, after) == rise
        assert not ethtool_statistics.was_restarted({"x": before}, {"x": after})


def test_names_of_both_drivers_mean_the_same() -> None:
    igc = ethtool_statistics.rises(
        {"rx_crc_errors": 1, "rx_missed_errors": 0, "rx_queue_0_drops": 0, "tx_timeout_count": 5},
        {"rx_crc_errors": 8, "rx_missed_errors": 3, "rx_queue_0_drops": 2, "tx_timeout_count": 6},
    )
    r8169 = ethtool_statistics.rises({"align_errors": 65535, "rx_missed": 10}, {"align_errors": 6, "rx_missed": 15})
    assert (igc.broken_frames, igc.dropped_by_full_queues, igc.transmitter_stuck) == (7, 5, 1)
    assert (r8169.broken_frames, r8169.dropped_by_full_queues, r8169.restarted) == (7, 5, False)


def test_ethtool_reads_modes_over_several_lines() -> None:
    found = ethtool.parse(
        boxes.ethtool(speed="1000Mb/s", partner="1000baseT/Full\n\t                        2500baseT/Full")
    )
    assert (found.speed_mbps, found.offered_mbps, found.partner_mbps, found.wake_on) == (1000, 2500, 2500, "g")
    assert ethtool.parse(boxes.ethtool(speed="Unknown!", link="no")).link is False
    assert ethtool.parse("netlink error: No such device\n").device_gone


def test_power_limits_by_both_interfaces_the_lower_holds() -> None:
    assert rapl.parse(boxes.rapl(10_000_000, 6_000_000)).holding_uw == 6_000_000
    assert rapl.parse(boxes.rapl(10_000_000, 6_000_000, mmio_enabled=0)).holding_uw == 10_000_000


def test_temperatures_of_sensors_that_are_not_connected_are_left_out() -> None:
    text = boxes.thermal(load_c=66).replace("temp:66000", "temp:-273200")
    assert thermal.parse(text).load_c is None
    assert thermal.parse(boxes.thermal(throttled=7)).throttled == 7


def test_frequency_counts_past_the_turbo_window() -> None:
    found = cpufreq.parse(boxes.cpufreq(3400, 3400, 2200, 2000, 2000, 2000))
    assert (found.sustained_mhz, found.first_mhz, found.settled_at_s, found.num_online) == (2000, 3400, 120, 4)


@pytest.mark.parametrize(("text", "count"), [("0-3", 4), ("0-2", 3), ("0,2-3", 3), ("7", 1), ("", None), ("a-b", None)])
def test_cpu_lists(text: str, count: int | None) -> None:
    assert cpufreq.count_of(text) == count


def test_edac_tells_no_controller_from_no_errors() -> None:
    assert edac.parse("edac-util: Error: No memory controller data found.\n").controllers == ()
    counted = edac.parse("/sys/devices/system/edac/mc/mc0/ce_count:3\n/sys/devices/system/edac/mc/mc0/ue_count:1\n")
    assert (counted.corrected, counted.uncorrected) == (3, 1)


def test_machine_checks_of_the_memory_controller() -> None:
    found = mce.parse("mce: [Hardware Error]: CPU 4: Machine Check: 0 Bank 7: bd80000000100090\n")
    assert found.logged[0].is_memory and found.logged[0].is_uncorrected
    assert not mce.MachineCheck(0, 0x9000000000000005).is_memory


def test_pattern_test_finds_the_bit_that_is_wrong_everywhere() -> None:
    errors = [
        {"address": "0x10", "expected": "0x0", "got": "0x8"},
        {"address": "0x20", "expected": "0x8", "got": "0x0"},
    ]
    found = memtest.parse(json.dumps({"tested_bytes": 99, "errors": errors, "patterns": ["random"]}))
    assert found.same_bits == 8 and len(found.errors) == 2
    with pytest.raises(Unreadable, match="tested nothing"):
        memtest.parse('{"tested_bytes": 0, "errors": []}')


def test_rtc_readings_oldest_first() -> None:
    found = rtc_readings.parse(
        "rtc=2026-03-01T08:00:05 host=2026-03-01T08:00:00+00:00"
        " earlier_rtc=2026-02-01T08:00:00 earlier_host=2026-02-01T08:00:01+00:00\n"
    )
    assert [reading.offset_s for reading in found] == [-1.0, 5.0]


def test_cmos_bits_and_a_bus_that_nobody_drives() -> None:
    assert cmos.parse("reg 0x0d = 0x00\n").valid_ram_and_time is False
    found = cmos.parse("reg 0x0d = 0xff\nreg 0x0e = 0xc4\n")
    assert (found.valid_ram_and_time, found.lost_power, found.bad_checksum, found.bad_time) == (None, True, True, True)
    with pytest.raises(Unreadable):
        cmos.parse("reg 0x0d = 0xff\nreg 0x0e = 0xff\n")


def test_file_systems_by_the_longest_mount() -> None:
    systems = df.parse(
        "Filesystem 1B-blocks Used Available Use% Mounted on\n"
        "/dev/a 1000 1000 0 100% /\ntmpfs 1000 0 1000 0% /var/lib/duckfleet\n"
        "Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/a 1000 1000 0 100% /\n"
    )
    assert [system.mount for system in systems.holding("/var/lib/duckfleet/x")] == ["/var/lib/duckfleet"]
    assert [system.counts for system in systems.holding("/srv") if system.is_full] == ["bytes", "inodes"]


DHCP = """# watched 2026-12-31T23:59:00+00:00 to 2027-01-01T00:02:00+00:00 on enp1 (10.21.1.0/24)
Dec 31 23:59:10 goose dnsmasq-dhcp[7]: 11 vendor class: PXEClient:Arch:00007:UNDI:003001
Dec 31 23:59:10 goose dnsmasq-dhcp[7]: 11 DHCPDISCOVER(enp1) 02:00:00:00:00:01
Dec 31 23:59:11 goose dnsmasq-dhcp[7]: 11 DHCPOFFER(enp1) 10.21.1.101 02:00:00:00:00:01
Dec 31 23:59:11 goose dnsmasq-dhcp[7]: 11 DHCPACK(enp1) 10.21.1.101 02:00:00:00:00:01
Dec 31 23:59:12 goose dnsmasq-tftp[7]: file /srv/ipxe.efi not found for 10.21.1.101
Jan  1 00:00:00 goose dnsmasq-dhcp[7]: 12 vendor class: MSFT 5.0
Jan  1 00:00:00 goose dnsmasq-dhcp[7]: 12 client provides name: DESKTOP
Jan  1 00:00:00 goose dnsmasq-dhcp[7]: 12 DHCPDISCOVER(enp1) 02:00:00:00:00:02
Jan  1 00:00:01 goose dnsmasq-dhcp[7]: DHCPDISCOVER(enp1) 02:00:00:00:00:03 no address available
Jan  1 00:01:00 goose dnsmasq[7]: exiting on receipt of SIGTERM
"""


def test_dhcp_log_over_new_year() -> None:
    log = dhcp_log.parse(DHCP)
    first, second, third = log.asks
    assert first.at == datetime(2026, 12, 31, 23, 59, 10, tzinfo=UTC) and first.acknowledged
    assert not first.is_other_system and second.is_other_system and second.at.year == 2027
    assert third.refusal == "no address available" and not third.answered
    assert [(file.name, file.failure) for file in log.files] == [("/srv/ipxe.efi", "not found")]
    assert log.deaf_s == 60.0


def test_kernel_log_keeps_what_means_something() -> None:
    log = dmesg.parse(
        "[    0.3] ACPI Error: AE_ALREADY_EXISTS, During name lookup/catalog (20230628/psobject-220)\n"
        "[    2.0] nvme 0000:03:00.0: probe with driver nvme failed with error -5\n"
        "[    2.1] igc 0000:01:00.0: probe with driver igc failed with error -5\n"
        "[    6.7] r8169 0000:02:00.0 enp2s0: Link is Up - 1Gbps/Full - flow control off\n"
        "[   99.0] EDAC igen6 MC0: HANDLING IBECC MEMORY ERROR\n"
    )
    assert [mark.kind for mark in log.marks] == ["nic_not_started", "link_up"]
    assert log.link_mbps == 1000


def test_history_is_sorted_and_its_evidence_is_an_object() -> None:
    text = "2026-03-02T00:00:00+00:00\tup\tanswered\t{}\n2026-03-01T00:00:00+00:00\toff\tpower_cut\tnot json\n"
    first, second = events.parse(text)
    assert (first.event, second.event, first.evidence) == ("power_cut", "answered", {})
    assert events.parse("") == ()


def test_magic_packets() -> None:
    (packet,) = wol.parse("2026-03-02T00:00:00+00:00 magic packet to 02:00:00:00:00:AA via enp1 10.21.1.255:9 x3\n")
    assert packet.mac == "02:00:00:00:00:aa"
    assert wol.parse("# no magic packet sent\n") == ()


def test_numbers_are_bounded() -> None:
    assert raw.integer("9" * 21) is None and raw.integer("٣") is None and raw.integer("-12") == -12
    assert raw.number(float("nan")) is None and raw.number(10**400) is None and raw.number(True) is None
    assert raw.whole(2.5) is None and raw.whole(3.0) == 3
    assert raw.moment("2026-13-01T00:00:00") is None and raw.moment("0001-01-01T00:00:00+23:00") is None
