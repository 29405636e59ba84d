"""A site of five ducks and what duckd reports of each when all is well; to be changed one thing at a time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from duckfleet.fleet.probe_facts import measured
from duckfleet.inventory.store import Store

NUM_DUCKS = 5
SITE = """
[fleet]
name = "pond"

[expect]
link_mbps = 2500

[[domains]]
name = "1"
interface = "lo"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-105]"
mtu = 9000
"""
NOW_S = 1_780_000_000.0


def mac(i: int) -> str:
    return f"02:00:00:00:00:{i:02x}"


def report(i: int) -> dict[str, Any]:
    module = {"size_bytes": 16 << 30, "speed_mt_per_s": 3200, "configured_mt_per_s": 3200}
    return {
        "boot_id": "b",
        "memory": {"total_bytes": 32_500_000 * 1024, "modules": [{**module, "locator": f"DIMM{n}"} for n in range(2)]},
        "board": {
            "product_name": "Box",
            "bios_version": "1.08",
            "bios_date": "03/18/2024",
            "product_serial": "FFFFFFFF",
        },
        "clock": {"rtc_date": "2026-05-28", "rtc_time": "20:26:40", "batt_status": "okay"},
        "cpu": {"model": "N100", "num_cpus": 4},
        "nics": [
            {
                "name": "enp1s0",
                "mac": mac(i),
                "carrier": 1,
                "carrier_changes": 3,
                "speed_mbit_per_s": 2500,
                "duplex": "full",
                "mtu": 9000,
                "counters": {"rx_packets": 1000, "rx_crc_errors": 0, "rx_missed_errors": 0},
            }
        ],
        "unknown": [],
    }


def probe(store: Store, i: int, values: dict[str, Any], read_bytes_per_s: float = 22e9) -> None:
    numbers = {**measured(values), "read_bandwidth": (read_bytes_per_s, "B/s")}
    store.add_probe_run(mac(i), NOW_S, "ok", values, measured=numbers)


def fresh_clock(values: dict[str, Any]) -> dict[str, Any]:
    """The RTC of the report says now, as a healthy one does."""
    now = datetime.now(UTC)
    values["clock"] |= {"rtc_date": f"{now:%Y-%m-%d}", "rtc_time": f"{now:%H:%M:%S}"}
    return values
