"""Raw texts of a box over ssh, for boxes that run a full system, or whose daemon is silent: what its own tools say.

Each text is taken for what it is: a tool that is not there says so in it, and the parser makes that `unknown`.
"""

from __future__ import annotations

import shlex
import time
from pathlib import Path

from duckfleet.fleet.errors import DuckUnreachable
from duckfleet.fleet.shell import DuckShell
from duckfleet.inventory.site import Duck

COMMAND_TIMEOUT_S = 10.0
BUDGET_S = 40.0
KEPT_BYTES = 96 << 10  # of each; the end where it is longer: a log's end is its news
RTC, POWERCAP = "/sys/class/rtc/rtc0", "/sys/class/powercap"
COMMANDS = {
    "meminfo.txt": "cat /proc/meminfo",
    "dmidecode.txt": "dmidecode -t 0 -t 1 -t 17",
    "rtc.txt": "cat /proc/driver/rtc",
    "edac.txt": "grep . /sys/devices/system/edac/mc/mc*/ce_count /sys/devices/system/edac/mc/mc*/ue_count",
    "mce.txt": "grep -E '^ *MC[EP]:' /proc/interrupts",
    "ip_link.txt": "ip -s -s link show",
    "ethtool.txt": "ethtool {interface}",
    "ethtool_s_after.txt": "ethtool -S {interface}",
    "rapl.txt": f"grep -s . {POWERCAP}/intel-rapl/intel-rapl:0/* {POWERCAP}/intel-rapl-mmio/intel-rapl-mmio:0/*",
    "thermal.txt": "grep -s . /sys/class/thermal/thermal_zone*/type /sys/class/thermal/thermal_zone*/temp "
    "/sys/devices/system/cpu/cpu*/thermal_throttle/*_throttle_count",
    "df.txt": "df -B1; df -i",
    "dmesg.txt": "dmesg",
}
"""File name of `look_from_texts` -> the command whose words it holds."""
TIMED_OUT = "probe: timed out"
FIND_INTERFACE = "grep -ilx {mac} /sys/class/net/*/address"


def collect(
    duck: Duck, keys_dir: Path, *, port: int = 22, budget_s: float = BUDGET_S, host_key: str = ""
) -> dict[str, str]:
    """By file name. Raises `DuckUnreachable` where there is no shell; a command that fails is a text that says so."""
    until = time.monotonic() + budget_s
    texts = {}
    with DuckShell(duck, keys_dir, port=port, timeout_s=COMMAND_TIMEOUT_S, host_key=host_key) as shell:
        interface = _interface(shell, duck)
        for name, command in COMMANDS.items():
            if "{interface}" in command and not interface:
                continue
            left_s = until - time.monotonic()
            if left_s <= 0:
                texts[name] = "probe: the time was up before its turn"
                continue
            texts[name] = _said(shell, command.format(interface=interface), min(left_s, COMMAND_TIMEOUT_S))
    return texts


def _said(shell: DuckShell, command: str, timeout_s: float) -> str:
    """What it printed on both channels, whatever its exit status."""
    try:
        # Where the box has `timeout`, nothing of ours is left running there either.
        limited = f"${{t:+$t {max(1, round(timeout_s))}}} sh -c {shlex.quote(command)}"
        bounded = f't=$(command -v timeout); exec 2>&1; {limited}; [ $? != 124 ] || echo "{TIMED_OUT}"; true'
        text = shell.run(bounded, timeout_s=timeout_s + 1.0)
    except DuckUnreachable as error:
        return f"probe: {error}"
    if text.endswith(f"{TIMED_OUT}\n"):
        return TIMED_OUT  # half of an answer would be read for the whole
    if len(text) > KEPT_BYTES:
        text = text[-KEPT_BYTES:].partition("\n")[2]
    return text


def _interface(shell: DuckShell, duck: Duck) -> str:
    """The interface with the duck's MAC; empty where it has none."""
    text = _said(shell, FIND_INTERFACE.format(mac=duck.mac), COMMAND_TIMEOUT_S)
    parts = text.strip().splitlines()[:1] or [""]
    name = parts[0].removeprefix("/sys/class/net/").removesuffix("/address")
    return name if 0 < len(name) < 16 and "/" not in name and not set(name) & set(" ;&|$`'\"") else ""
