"""The causes: what each is, what mends it, which part to bring, and where it is mended."""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.fleet.diagnosis.findings import INSUFFICIENT

AT_THE_BOX, AT_THE_SWITCH, AT_THE_DESK = "box", "switch", "desk"


@dataclass(frozen=True, slots=True)
class CauseInfo:
    text: str
    remedy: str
    place: str
    part: str = ""  # to bring; empty: nothing


CAUSES: dict[str, CauseInfo] = {
    "dead_cmos_battery": CauseInfo(
        "CMOS battery empty",
        "replace the coin cell, set clock and boot order",
        AT_THE_BOX,
        "CR2032 (or the cell with lead)",
    ),
    "boot_order": CauseInfo(
        "boots something else", "set the network first in the boot order", AT_THE_BOX, "screen, keyboard"
    ),
    "wol_disabled": CauseInfo(
        "does not wake by a packet",
        "switch wake-on-LAN on and deep sleep off in the firmware",
        AT_THE_BOX,
        "screen, keyboard",
    ),
    "no_power": CauseInfo("no power", "check plug, strip and adapter; swap the adapter", AT_THE_BOX, "power adapter"),
    "cable_unseated": CauseInfo("network cable out or loose", "push the network cable in at both ends", AT_THE_BOX),
    "cable_bad": CauseInfo("network cable bad", "replace the network cable", AT_THE_BOX, "network cable"),
    "switch_port": CauseInfo("switch port", "look at the port's settings, then use another port", AT_THE_SWITCH),
    "nic_fault": CauseInfo(
        "network card", "power-cycle the box; if it comes back, replace the box", AT_THE_BOX, "spare box"
    ),
    "dimm_missing": CauseInfo(
        "memory module missing or not seated", "reseat the module", AT_THE_BOX, "memory module, screwdriver"
    ),
    "dimm_faulty": CauseInfo("memory module faulty", "replace the module", AT_THE_BOX, "memory module, screwdriver"),
    "dimm_slow": CauseInfo(
        "wrong memory module, or clocked low",
        "fit the fleet's module, or set its speed",
        AT_THE_BOX,
        "memory module, screwdriver",
    ),
    "cpu_power_limit": CauseInfo("held back by a power limit", "set the power limits of both interfaces", AT_THE_DESK),
    "cpu_thermal": CauseInfo("too hot", "clean or replace the fan, free the vents", AT_THE_BOX, "fan, air duster"),
    "cpu_slow_other": CauseInfo(
        "slow for another reason", "look at governor, turbo, cores and other processes", AT_THE_DESK
    ),
    "bios_outdated": CauseInfo(
        "firmware outdated", "flash the fleet's firmware", AT_THE_BOX, "USB stick with the firmware"
    ),
    "image_or_dhcp_server": CauseInfo(
        "our boot service or image", "look at the boot service's log on the host", AT_THE_DESK
    ),
    "hung_os": CauseInfo("system hangs", "power-cycle it", AT_THE_BOX),
    "duckd_crashed": CauseInfo("duckd is not running", "restart duckd, keep its log", AT_THE_DESK),
    "mtu_mismatch": CauseInfo("MTU too small somewhere", "set the MTU on duck, switch and host alike", AT_THE_DESK),
    "packet_loss_congestion": CauseInfo("queues overflow", "look at ring sizes, pacing and uplinks", AT_THE_DESK),
    "clock_drift": CauseInfo("clock runs wrong", "let the image set the clock at each start", AT_THE_DESK),
    "storage_full": CauseInfo("no room for chunks", "remove what is not needed from the chunk store", AT_THE_DESK),
    INSUFFICIENT: CauseInfo("not enough is known", "look at it, or add a source of evidence", AT_THE_BOX),
}
