"""Kinds of evidence beside those of the corpus: other drivers, forms of logs, wordings of notes, words of a switch."""

from __future__ import annotations

import json

import pytest

from duckfleet.fleet.diagnosis import diagnose, look_from_texts
from duckfleet.fleet.diagnosis.findings import HEALTHY, INSUFFICIENT
from duckfleet.fleet.diagnosis.workorder import Patient, jobs
from tests.fleet.diagnosis.boxes import (
    MAC,
    burst,
    cpufreq,
    diagnosis_of,
    dmidecode,
    ethtool,
    event,
    healthy,
    ip_link,
    kernels,
    mains_lost,
    rtc_reading,
    statistics,
    thermal,
)

STARTED = "[    0.000000] Linux version 6.12.30\n"
SERVED = event("2026-03-08T08:01:00", "up", "answered") + event("2026-03-08T08:12:00", "serving", "serve_started")
ORDERED_OFF = event("2026-03-09T20:00:00", "off", "power_cut", how="poweroff")
WOKEN = event("2026-03-10T11:50:00", "waking", "wake_sent")
IN_VAIN = SERVED + ORDERED_OFF + WOKEN + event("2026-03-10T11:52:00", "lost", "timed_out", in_state="waking")
WHILE_LOADING = IN_VAIN.replace('"waking"}', '"loading"}')
WENT = SERVED + event("2026-03-10T11:00:00", "lost", "went_silent", error="timed out", ping="0/3")


def noted(text: str) -> str:
    return IN_VAIN.replace(WOKEN, event("2026-03-10T09:00:00", "off", "note", by="mk", text=text) + WOKEN)


def went(**evidence: object) -> str:
    return SERVED + event("2026-03-10T11:00:00", "lost", "went_silent", **evidence)


def port(up: bool = True, speed: int = 2500, since: str = "2026-03-10T11:50:08+00:00", **more: object) -> str:
    return json.dumps({"switch": {"port": "1/0/7", "port_up": up, "speed_mbps": speed, "since": since, **more}})


def plug(watts: float) -> str:
    return json.dumps({"plug": {"watts": watts, "relay": "on", "history": [["2026-03-10T11:49:00+00:00", 0.8]]}})


def person(**answers: str) -> str:
    return json.dumps({"person": [{"asked": asked, "answer": answer} for asked, answer in answers.items()]})


def dhcp(*lines: str) -> str:
    window = "# watched 2026-03-10T11:49:50+00:00 to 2026-03-10T11:55:00+00:00 on enp1 (10.21.1.0/24)\n"
    return window + "".join(f"Mar 10 11:51:{at:02} goose {line}\n" for at, line in enumerate(lines))


def silent(events: str, outside: str = "{}", **texts: str) -> str:
    kept = ("duck.json", "fleet.json")
    absent: dict[str, str | None] = {name: None for name in healthy() if name not in kept}
    named = {name.replace("_txt", ".txt").replace("_log", ".log"): text for name, text in texts.items()}
    return diagnosis_of({**absent, "events.txt": events, "outside.json": outside, **named}).top_cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("set ErP to S4+S5", "wol_disabled"),
        ("wake-on-LAN: disabled for the test", "wol_disabled"),
        ("loaded optimized defaults", "boot_order"),
        ("secure boot switched on", "boot_order"),
        ("took the coin cell out to measure it", "dead_cmos_battery"),
        ("moved to another power strip", "no_power"),
        ("new adapter", "no_power"),
        ("changed VLANs on the rack switch", "switch_port"),
        ("switch firmware updated", "switch_port"),
        ("re-cabled shelf B", "cable_unseated"),
        ("swapped RAM with d1-103", "dimm_missing"),
        ("image b7f02c: sent to 5 ducks since 04:00, none came up", "image_or_dhcp_server"),
        ("found a dead spider beside it", INSUFFICIENT),
    ],
)
def test_what_somebody_did_to_it_is_the_first_suspect(text: str, cause: str) -> None:
    assert silent(noted(text)) == cause


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (STARTED + "[ 9000.1] watchdog: Watchdog detected hard LOCKUP on cpu 2\n", "hung_os"),
        (STARTED + "[ 9000.1] Oops: invalid opcode: 0000 [#1] PREEMPT SMP NOPTI\n", "hung_os"),
        (STARTED + "[ 9000.1] Kernel panic - not syncing: Attempted to kill init! exitcode=0xb\n", "hung_os"),
        ("[Tue Mar 10 10:58:11 2026] INFO: task duckd:412 blocked for more than 120 seconds.\n", "hung_os"),
        ("Mar 10 10:59:58 d1-107 kernel: Kernel panic - not syncing: Fatal exception in interrupt\n", "hung_os"),
        ("4,1205,9000123999,-;Kernel panic - not syncing: Fatal exception\n", "hung_os"),
        (
            STARTED + "[ 9000.1] thermal thermal_zone0: critical temperature reached (105 C), shutting down\n",
            "cpu_thermal",
        ),
        (STARTED + "[ 9000.1] ACPI: thermal: Critical temperature reached (119 C), shutting down.\n", "cpu_thermal"),
        (
            STARTED + "[ 9000.1] mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 7: be00000000800091\n"
            "[ 9000.2] Kernel panic - not syncing: Fatal machine check\n",
            "dimm_faulty",
        ),
        (STARTED + "[ 9000.1] e1000e 0000:01:00.0 eth0: Detected Hardware Unit Hang:\n", "nic_fault"),
        (
            STARTED
            + "".join(
                f"[ {8000 + i * 60}.1] r8169 0000:01:00.0 enp1s0: Link is Up - 2.5Gbps/Full\n"
                f"[ {8010 + i * 60}.1] r8169 0000:01:00.0 enp1s0: Link is Down\n"
                for i in range(3)
            ),
            "cable_unseated",
        ),
    ],
)
def test_last_words_in_any_form_of_log(log: str, cause: str) -> None:
    assert silent(WENT, dmesg_txt=log) == cause


@pytest.mark.parametrize(
    "log",
    [
        STARTED + "[   31.1] Gave up waiting for root file system device.  Common problems:\n",
        STARTED + "[    1.9] Failed to execute /init (error -2)\n[    2.0] Kernel panic - not syncing: No init\n",
        STARTED + "[    2.0] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\n",
    ],
)
def test_an_image_that_finds_no_system_is_our_fault(log: str) -> None:
    assert silent(WHILE_LOADING, dmesg_txt=log) == "image_or_dhcp_server"


def test_a_start_that_begins_again_and_again_is_the_images_fault_though_no_state_is_overdue() -> None:
    rounds = "".join(
        event(f"2026-03-10T11:{minute}:30", "dhcp", "dhcp_seen", mac=MAC)
        + event(f"2026-03-10T11:{minute}:33", "loading", "image_sent")
        for minute in (50, 54, 58)
    )
    assert silent(SERVED + ORDERED_OFF + WOKEN + rounds) == "image_or_dhcp_server"


def test_seconds_after_the_packet_nothing_can_be_said_and_nobody_is_sent() -> None:
    starting = SERVED + ORDERED_OFF + event("2026-03-10T11:59:40", "waking", "wake_sent")
    assert silent(starting) == INSUFFICIENT
    texts = {name: healthy()[name] for name in ("duck.json", "fleet.json")}
    diagnosis = diagnose(look_from_texts({**texts, "events.txt": starting}))
    assert diagnosis.findings[0].next_test.text.startswith("wait") and not diagnosis.is_to_be_held
    assert jobs([Patient("d1-107", "10.21.1.107", "A7", diagnosis)]) == ()
    with_a_dead_battery = diagnosis_of({"events.txt": starting, "rtc.txt": "batt_status\t: dead\n"})
    (work,) = jobs([Patient("d1-107", "10.21.1.107", "A7", with_a_dead_battery)])
    assert work.causes == ("dead_cmos_battery",) and not work.first.startswith("wait")


OFFERED = tuple(
    f"dnsmasq-dhcp[1]: DHCP{kind}(enp1) {'' if kind == 'DISCOVER' else '10.21.1.107 '}{MAC}"
    for kind in ("DISCOVER", "OFFER", "REQUEST")
)
GIVEN = (*OFFERED, f"dnsmasq-dhcp[1]: DHCPACK(enp1) 10.21.1.107 {MAC}")
OTHER_SYSTEM = ("dnsmasq-dhcp[1]: 7 vendor class: MSFT 5.0", f"dnsmasq-dhcp[1]: 7 DHCPDISCOVER(enp1) {MAC}")


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ((*OFFERED, f"dnsmasq-dhcp[1]: DHCPNAK(enp1) 10.21.1.107 {MAC} wrong server-ID"), "image_or_dhcp_server"),
        ((*GIVEN, "dnsmasq-tftp[1]: cannot access /srv/ipxe.efi: Permission denied"), "image_or_dhcp_server"),
        ((*GIVEN, "dnsmasq-tftp[1]: file /srv/ipxe.efi not found for 10.21.1.107"), "image_or_dhcp_server"),
        (OTHER_SYSTEM, "boot_order"),
    ],
)
def test_what_the_boot_service_saw(lines: tuple[str, ...], cause: str) -> None:
    assert silent(IN_VAIN, dhcp_log=dhcp(*lines)) == cause


def test_another_system_that_refuses_our_port_has_no_daemon_to_miss() -> None:
    refused = IN_VAIN.replace('"waking"}', '"dhcp", "last_answer": "10.21.1.107:7021: connection refused"}')
    assert silent(refused) == "duckd_crashed"
    assert silent(refused, dhcp_log=dhcp(*OTHER_SYSTEM)) == "boot_order"


def test_a_box_that_woke_while_no_server_ran_is_not_blamed() -> None:
    deaf = dhcp().replace("11:55:00", "11:52:00") + "Mar 10 11:52:00 goose dnsmasq-dhcp[9]: started, version 2.90\n"
    assert silent(IN_VAIN, port(), dhcp_log=deaf) == "image_or_dhcp_server"
    assert silent(IN_VAIN, dhcp_log=deaf) == INSUFFICIENT


def test_last_look_says_that_it_cannot_be_woken() -> None:
    assert silent(IN_VAIN, ethtool_txt=ethtool(wake="d")) == "wol_disabled"
    assert silent(IN_VAIN, ethtool_txt=ethtool(wake="g")) == INSUFFICIENT


@pytest.mark.parametrize(
    ("events", "outside", "causes"),
    [
        (IN_VAIN, port(oper_reason="blocking (spanning tree)"), {"switch_port"}),
        (WENT, port(up=False, oper_reason="err-disabled: psecure-violation"), {"switch_port"}),
        (WENT, port(up=False, oper_reason="notconnect"), {"no_power", "cable_unseated"}),
        (IN_VAIN, port(speed=100, since="2026-03-09T20:00:05+00:00"), {"wol_disabled"}),
        (IN_VAIN, plug(1.4), {"wol_disabled"}),
        (IN_VAIN, plug(4.4), {"dimm_missing", "dimm_faulty"}),
        (IN_VAIN, person(power_led="on", screen="nothing", fan="spinning"), {"dimm_missing", "dimm_faulty"}),
        (IN_VAIN, person(power_led="On", beeps="1 long 3 short"), {"dimm_missing", "dimm_faulty"}),
        (IN_VAIN, person(beeps="1 short"), {INSUFFICIENT}),
        (WENT, person(power_led="on", link_led="off", cable="seated", swapped_cable="works"), {"cable_bad"}),
        (went(**{"ping": "0/3", "with": ["d1-101"], "same": "PDU outlet group B"}), "{}", {"no_power"}),
        (went(**{"ping": "0/3", "with": ["d1-101"], "same": "switch sw-rack2"}), "{}", {"switch_port"}),
        (went(error="10.21.1.107:7021: connection reset by peer", ping="3/3"), "{}", {"duckd_crashed"}),
        (went(error="timed out", ping="3/3", ssh="permission denied (publickey)"), "{}", {"duckd_crashed"}),
        (went(error="timed out", ping="5/5", ssh="timed out"), "{}", {"hung_os"}),
    ],
)
def test_words_from_outside(events: str, outside: str, causes: set[str]) -> None:
    assert silent(events, outside) in causes


R8169_BEFORE = "NIC statistics:\n     rx_packets: 10\n     rx_errors: 0\n     align_errors: 0\n     rx_missed: 0\n"
ONE_CORE = "".join(f"{at_s} 2900 2900 800 2900\n" for at_s in (1, 30, 60, 120, 300))
SINKING = cpufreq(2900, 2900, 2800, 2400, 2100, 2000)
DF = "Filesystem     Type 1K-blocks     Used Avail Use% Mounted on\n"
EARLIER_RTC = event("2026-03-04T08:00:00", "up", "answered") + event(
    "2026-03-04T08:00:01", "up", "rtc_read", rtc="2026-03-04T08:00:00", host="2026-03-04T08:00:01+00:00"
)
MCE = "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 7: 8c00004000010090\n"
IN_FIVE_DAYS = ("2026-03-05T08:00:01", "2026-03-05T08:00:00")


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"ethtool_s_after.txt": statistics(rx_fcs_errors=4003)}, HEALTHY),  # not there before
        (
            {
                "ethtool_s_before.txt": statistics(rx_fcs_errors=3),
                "ethtool_s_after.txt": statistics(rx_fcs_errors=4003),
            },
            "cable_bad",
        ),
        (
            {
                "ethtool_s_before.txt": R8169_BEFORE,
                "ethtool_s_after.txt": R8169_BEFORE.replace("rx_errors: 0", "rx_errors: 812"),
            },
            "cable_bad",
        ),
        (
            {
                "burst.json": burst(lost=400),
                "ethtool_s_before.txt": R8169_BEFORE,
                "ethtool_s_after.txt": R8169_BEFORE.replace("rx_errors: 0", "rx_errors: 400").replace(
                    "missed: 0", "missed: 400"
                ),
            },
            "packet_loss_congestion",
        ),
        (
            {
                "ethtool.txt": ethtool("100Mb/s").replace("Duplex: Full", "Duplex: Half")
                + "\tLink partner advertised auto-negotiation: No\n"
            },
            "switch_port",
        ),
        ({"ethtool.txt": "netlink error: No such device\n"}, "nic_fault"),
        ({"dmidecode.txt": dmidecode("16 GiB", "None").replace("\t", "    ")}, "dimm_missing"),
        ({"mce.txt": MCE * 12}, "dimm_faulty"),
        ({"dmesg.txt": STARTED + "[ 0.1]   5555555555555555 bad mem addr 0x123400000 reserved\n"}, "dimm_faulty"),
        ({"thermal.txt": thermal(55, 88, 900), "cpufreq.txt": SINKING, "kernels.json": kernels(14, 14)}, "cpu_thermal"),
        (
            {
                "thermal.txt": "\n".join(line for line in thermal(55, 99, 900).splitlines() if "zone" not in line),
                "cpufreq.txt": SINKING,
                "kernels.json": kernels(14, 14),
            },
            "cpu_thermal",
        ),
        ({"cpufreq.txt": f"# governor=performance\n{ONE_CORE}", "kernels.json": kernels(15, 15)}, "cpu_slow_other"),
        (
            {"cpufreq.txt": cpufreq(*[800] * 6, settings="boost=0 epp=power"), "kernels.json": kernels(6, 6)},
            "cpu_slow_other",
        ),
        (
            {
                "rtc_reading.txt": rtc_reading("2026-03-10T07:50:00"),
                "events.txt": EARLIER_RTC + healthy()["events.txt"],
            },
            "clock_drift",
        ),
        (
            {
                "rtc_reading.txt": rtc_reading("2026-03-10T08:11:00", earlier=IN_FIVE_DAYS),
                "events.txt": mains_lost("2026-03-07T02:00:00", "2026-03-07T04:00:00") + healthy()["events.txt"],
            },
            "clock_drift",
        ),
        (
            {
                "rtc_reading.txt": rtc_reading("2026-03-10T06:00:20", earlier=IN_FIVE_DAYS),
                "events.txt": mains_lost("2026-03-07T02:00:00", "2026-03-07T04:00:00") + healthy()["events.txt"],
            },
            "dead_cmos_battery",
        ),
        (
            {
                "rtc_reading.txt": None,
                "dmesg.txt": STARTED + "[ 1.1] rtc_cmos 00:04: setting system clock to 2018-01-01T00:00:09 UTC (1)\n",
            },
            "dead_cmos_battery",
        ),
        ({"df.txt": DF + "/dev/sda2 ext4 61000000 60990000 10000 100% /\n"}, "storage_full"),
        ({"dmesg.txt": STARTED + "[ 9.1] duckd-worker[412]: segfault at 0 ip 0 sp 0 error 4\n"}, "duckd_crashed"),
    ],
)
def test_other_drivers_and_tools(changes: dict[str, str | None], cause: str) -> None:
    assert diagnosis_of(changes).top_cause == cause


FLAP = (
    "[{}.1] igc 0000:01:00.0 enp1s0: NIC Link is Down\n"
    "[{}.2] igc 0000:01:00.0 enp1s0: NIC Link is Up 2500 Mbps Full Duplex\n"
)


@pytest.mark.parametrize(
    "changes",
    [
        {"dmesg.txt": healthy()["dmesg.txt"] + "[ 90.1] Bluetooth: hci0: command 0xfc05 tx timeout\n"},
        {"dmesg.txt": healthy()["dmesg.txt"] + "".join(FLAP.format(i * 900_000, i * 900_000) for i in range(1, 9))},
        {"dmesg.txt": "Mar 10 08:00:04 d1-107 kernel: r8169 0000:01:00.0 enp1s0: Link is Up - 2.5Gbps/Full\n"},
        {"dmesg.txt": STARTED + "[ 9.1] Out of memory: Killed process 99 (apt-get) total-vm:1kB\n"},
        {"mce.txt": MCE},
        {"thermal.txt": thermal(52, 84)},
        {"cpufreq.txt": cpufreq(*[2900] * 6, settings="governor=powersave no_turbo=0 online=0-3")},
        {"rtc_reading.txt": rtc_reading("2026-03-10T13:45:03")},
        {
            "ethtool_s_before.txt": statistics(rx_errors=0, rx_length_errors=0, rx_csum_offload_errors=0),
            "ethtool_s_after.txt": statistics(rx_errors=90, rx_length_errors=90, rx_csum_offload_errors=900),
        },
        {"ip_link.txt": ip_link(mac="02:00:00:00:00:99").replace("ff:ff\n", f"ff:ff permaddr {MAC}\n", 1)},
        {"df.txt": DF + "tmpfs tmpfs 1000 1000 0 100% /tmp\n/dev/sda2 ext4 61000000 1000 60990000 1% /\n"},
    ],
)
def test_odd_and_healthy_stays_healthy(changes: dict[str, str]) -> None:
    diagnosis = diagnosis_of(changes)
    assert diagnosis.top_cause == HEALTHY and not diagnosis.is_to_be_held
