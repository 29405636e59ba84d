"""A healthy duck's raw texts, to be changed one at a time. Written for the tests; the corpus is another's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from duckfleet.fleet.diagnosis import Diagnosis, diagnose, look_from_texts

MAC = "02:00:00:00:00:07"
NOW = "2026-03-10T12:00:00+00:00"

FLEET = {
    "fleet": "test",
    "num_ducks": 8,
    "mem_total_kb": {"median": 32_500_000, "mad": 10_000},
    "read_bytes_per_s": {"median": 22e9, "mad": 2e8},
    "write_bytes_per_s": {"median": 13e9, "mad": 2e8},
    "avx2_mhz": {"median": 2900, "mad": 10},
    "kernels_gb_per_s": {"fp9_gemv": {"median": 20.0, "mad": 0.2}},
    "package_temp_c": {"median": 66.0, "mad": 3.0},
    "rtt_us_p50": {"median": 60.0, "mad": 3.0},
    "expect": {
        "ram_mib": 32768,
        "dimms": 2,
        "ram_mt_per_s": 3200,
        "link_mbps": 2500,
        "mtu": 9000,
        "cores": 4,
        "power_limit_uw": 20_000_000,
    },
    "bios": {"Box": {"version": "1.08", "date": "2024-03-18"}},
}
DUCK = {
    "name": "d1-107",
    "address": "10.21.1.107",
    "mac": MAC,
    "domain": "1",
    "rack": "A7",
    "interface": "enp1s0",
    "now": NOW,
}


def dmidecode(*sizes: str, speed: str = "3200 MT/s", serial: str = "K1", version: str = "1.08") -> str:
    slots = "".join(
        f"Handle 0x{0x20 + i:04X}, DMI type 17, 92 bytes\nMemory Device\n\tSize: {size}\n\tLocator: DIMM{i}\n"
        f"\tSpeed: 3200 MT/s\n\tConfigured Memory Speed: {speed}\n\tSerial Number: {serial}\n\n"
        for i, size in enumerate(sizes)
    )
    return (
        "# dmidecode 3.4\nGetting SMBIOS data from sysfs.\n\n"
        "Handle 0x0000, DMI type 0, 26 bytes\nBIOS Information\n"
        f"\tVersion: {version}\n\tRelease Date: 03/18/2024\n\n"
        "Handle 0x0001, DMI type 1, 27 bytes\nSystem Information\n"
        f"\tProduct Name: Box\n\tSerial Number: {serial}\n\n{slots}"
    )


def rtc_status(time: str = "2026-03-10T12:00:01", battery: str = "okay") -> str:
    date, clock = time.split("T")
    return f"rtc_time\t: {clock}\nrtc_date\t: {date}\nbatt_status\t: {battery}\n"


def rtc_reading(rtc: str, host: str = "2026-03-10T08:00:00", earlier: tuple[str, str] | None = None) -> str:
    before = f" earlier_rtc={earlier[0]} earlier_host={earlier[1]}+00:00" if earlier else ""
    return f"rtc={rtc} host={host}+00:00{before}\n"


def event(at: str, state: str, name: str, **evidence: object) -> str:
    return f"{at}+00:00\t{state}\t{name}\t{json.dumps(evidence)}\n"


def mains_lost(at: str, until: str) -> str:
    return event(at, "off", "power_cut", ac="lost", until=f"{until}+00:00")


def kernels(*runs: float) -> str:
    rows = [
        {"at": f"2026-03-{day:02}T03:00:00+00:00", "gb_per_s": {"fp9_gemv": [20.4, value, value]}}
        for day, value in enumerate(runs, 9)
    ]
    return json.dumps({"runs": rows})


def bandwidth(*runs: float) -> str:
    rows = [{"at": f"2026-03-{day:02}T03:00:00+00:00", "read_bytes_per_s": value} for day, value in enumerate(runs, 9)]
    return json.dumps({"runs": rows})


def cpufreq(*mhz: int, settings: str = "governor=performance no_turbo=0 online=0-3") -> str:
    rows = "".join(f"{at_s} {value} {value}\n" for at_s, value in zip((1, 30, 60, 120, 300, 600), mhz, strict=False))
    return f"# driver=intel_pstate {settings}\n# t_s cpu0 cpu1\n{rows}"


def rapl(msr_uw: int = 20_000_000, mmio_uw: int = 20_000_000, mmio_enabled: int = 1) -> str:
    lines = []
    for name, limit, enabled in (("intel-rapl", msr_uw, 1), ("intel-rapl-mmio", mmio_uw, mmio_enabled)):
        base = f"/sys/class/powercap/{name}/{name}:0"
        lines += [
            f"{base}/enabled:{enabled}",
            f"{base}/constraint_0_name:long_term",
            f"{base}/constraint_0_power_limit_uw:{limit}",
        ]
    return "\n".join(lines) + "\n"


def thermal(idle_c: int = 42, load_c: int = 66, throttled: int = 0) -> str:
    parts = []
    for title, celsius, count in (("before load", idle_c, 0), ("under load, 10 min", load_c, throttled)):
        parts.append(
            f"== {title} ==\n"
            "/sys/class/thermal/thermal_zone0/type:acpitz\n/sys/class/thermal/thermal_zone0/temp:27800\n"
            "/sys/class/thermal/thermal_zone1/type:x86_pkg_temp\n"
            f"/sys/class/thermal/thermal_zone1/temp:{celsius * 1000}\n"
            f"/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count:{count}\n"
        )
    return "".join(parts)


def ethtool(speed: str = "2500Mb/s", link: str = "yes", wake: str = "g", partner: str = "") -> str:
    offered = f"\tLink partner advertised link modes:  {partner}\n" if partner else ""
    return (
        "Settings for enp1s0:\n\tAdvertised link modes:  100baseT/Full 1000baseT/Full\n"
        "\t                        2500baseT/Full\n"
        f"{offered}\tSpeed: {speed}\n\tDuplex: Full\n\tAuto-negotiation: on\n"
        f"\tSupports Wake-on: pumbg\n\tWake-on: {wake}\n\tLink detected: {link}\n"
    )


def statistics(**counters: int) -> str:
    values = {"rx_packets": 1_000_000, "tx_packets": 900_000, "rx_crc_errors": 0, "rx_missed_errors": 0, **counters}
    return "NIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in values.items())


def ip_link(mtu: int = 9000, flags: str = "BROADCAST,MULTICAST,UP,LOWER_UP", mac: str = MAC) -> str:
    return (
        f"2: enp1s0: <{flags}> mtu {mtu} qdisc mq state UP mode DEFAULT group default qlen 1000\n"
        f"    link/ether {mac} brd ff:ff:ff:ff:ff:ff\n"
        "    TX errors: aborted   fifo  window heartbt transns\n                     0      0       0       0       3\n"
    )


def burst(lost: int = 0, p50_us: float = 61.0, mtu: int = 9000) -> str:
    way = {"sent": 20000, "received": 20000 - lost, "duplicates": 0}
    return json.dumps(
        {
            "to_duck": way,
            "from_duck": {"sent": 20000, "received": 20000, "duplicates": 0},
            "rtt_us": {"p50": p50_us, "p99": 120.0, "max": 400.0},
            "mtu_passed": mtu,
        }
    )


def healthy() -> dict[str, str]:
    """Every source was read, and all is well."""
    return {
        "duck.json": json.dumps(DUCK),
        "fleet.json": json.dumps(FLEET),
        "outside.json": "{}",
        "events.txt": event("2026-03-10T07:58:00", "waking", "wake_sent", driver="wol")
        + event("2026-03-10T07:58:30", "dhcp", "dhcp_seen", mac=MAC, arch=7)
        + event("2026-03-10T08:00:00", "up", "answered", address="10.21.1.107"),
        "dmidecode.txt": dmidecode("16 GB", "16 GB"),
        "meminfo.txt": "MemTotal:       32510000 kB\nMemFree:        30000000 kB\n",
        "rtc.txt": rtc_status(),
        "rtc_reading.txt": rtc_reading("2026-03-10T08:00:02"),
        "cmos.txt": "reg 0x0a = 0x26\nreg 0x0d = 0x80\n",
        "edac.txt": "grep: /sys/devices/system/edac/mc/mc*/ce_count: No such file or directory\n",
        "mce.txt": " MCE:          0          0   Machine check exceptions\n MCP:  20  20   Machine check polls\n",
        "memtest.txt": json.dumps({"tested_bytes": 28 << 30, "errors": [], "patterns": ["walking_ones", "random"]}),
        "ethtool.txt": ethtool(),
        "ethtool_s_before.txt": statistics(),
        "ethtool_s_after.txt": statistics(rx_packets=1_020_000, tx_packets=920_000),
        "ip_link.txt": ip_link(),
        "burst.json": burst(),
        "rapl.txt": rapl(),
        "thermal.txt": thermal(),
        "cpufreq.txt": cpufreq(2900, 2900, 2898, 2902, 2901, 2899),
        "bandwidth.json": bandwidth(21.9e9, 22.1e9),
        "kernels.json": kernels(19.9, 20.1),
        "dmesg.txt": "[    0.000000] Linux version 6.12.30\n"
        "[    6.400257] igc 0000:01:00.0 enp1s0: NIC Link is Up 2500 Mbps Full Duplex\n",
    }


def diagnosis_of(changes: Mapping[str, str | None]) -> Diagnosis:
    """Of the healthy box with these texts instead; None: the file is not there."""
    texts = {name: text for name, text in {**healthy(), **changes}.items() if text is not None}
    return diagnose(look_from_texts(texts))


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


def unknown_sources(diagnosis: Diagnosis) -> set[str]:
    return {unknown.source for unknown in diagnosis.unknown}
