"""QEMU's command line for a virtual duck in some condition. Pure.

TCG, not KVM: a lab must run where there is none. `-cpu max` has AVX2, FMA and F16C, as an N100 has.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from duckfleet.fleet.vm.faults import Condition
from duckfleet.fleet.vm.plan import LINK_MBPS, VmDuck

OVMF_CODE = Path("/usr/share/OVMF/OVMF_CODE_4M.fd")  # Debian's package ovmf
OVMF_VARS = Path("/usr/share/OVMF/OVMF_VARS_4M.fd")


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """A machine's own files in the lab's folder."""

    console: Path  # what it prints on its serial port
    variables: Path  # UEFI's non-volatile memory
    memory_table: Path  # SMBIOS


def command(machine: VmDuck, condition: Condition, files: MachineFiles) -> list[str]:
    """The whole command line."""
    words = ["qemu-system-x86_64", "-name", machine.name, "-machine", "q35", "-accel", "tcg"]
    words += ["-icount", f"shift={condition.icount_shift},sleep=on"]
    words += ["-cpu", "max", "-smp", "1", "-m", str(condition.num_modules * machine.module_mib)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", f"file:{files.console}"]
    words += ["-rtc", f"base={condition.rtc_base or 'utc'}"]
    if machine.firmware == "uefi":
        words += ["-drive", f"if=pflash,format=raw,readonly=on,file={OVMF_CODE}"]
        words += ["-drive", f"if=pflash,format=raw,file={files.variables}"]
    words += ["-smbios", "type=0,vendor=Lab,version=1.0,date=01/01/2024"]
    words += ["-smbios", f"type=1,manufacturer=Lab,product=Virtual duck,serial={machine.name}"]
    words += ["-smbios", f"file={files.memory_table}"]
    return [*words, *_network(machine, condition), "-device", "virtio-rng-pci"]


def _network(machine: VmDuck, condition: Condition) -> list[str]:
    speed = condition.link_mbps(LINK_MBPS)
    words = ["-netdev", f"tap,id=cable,ifname={machine.tap},script=no,downscript=no"]
    if not condition.boots_from_network:
        # A card without a boot ROM that no firmware here has a driver for: nothing is left to boot from.
        return [*words, "-device", f"e1000e,netdev=cable,mac={machine.mac},romfile="]
    card = f"virtio-net-pci,netdev=cable,mac={machine.mac},bootindex=0,speed={speed},duplex=full"
    # OVMF has a driver and a PXE of its own; with the ROM it would load iPXE from there.
    return [*words, "-device", f"{card},romfile=" if machine.firmware == "uefi" else card]
