"""The network cards a duck may have, and the modules an image needs for them and for the probe."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NicId:
    """A supported network card: PCI ids, the module that drives it, the firmware files that module asks for."""

    vendor: int
    device: int
    name: str
    module: str
    firmware: tuple[str, ...] = ()


INTEL, REALTEK, VIRTIO = 0x8086, 0x10EC, 0x1AF4
RTL8168_FIRMWARE = ("rtl_nic/rtl8168g-2.fw", "rtl_nic/rtl8168h-2.fw")
RTL8125_FIRMWARE = ("rtl_nic/rtl8125a-3.fw", "rtl_nic/rtl8125b-2.fw")

# Source of the ids: the PCI ID database (pci-ids.ucw.cz) and the drivers' own tables.
SUPPORTED_NICS = (
    NicId(INTEL, 0x125B, "Intel I226-LM", "igc"),
    NicId(INTEL, 0x125C, "Intel I226-V", "igc"),
    NicId(INTEL, 0x125D, "Intel I226-IT", "igc"),
    NicId(INTEL, 0x15F2, "Intel I225-LM", "igc"),
    NicId(INTEL, 0x15F3, "Intel I225-V", "igc"),
    NicId(INTEL, 0x0D4C, "Intel I219-LM", "e1000e"),
    NicId(INTEL, 0x15B8, "Intel I219-V", "e1000e"),
    NicId(INTEL, 0x10D3, "Intel 82574L", "e1000e"),
    NicId(INTEL, 0x1533, "Intel I210", "igb"),
    NicId(INTEL, 0x1539, "Intel I211", "igb"),
    NicId(INTEL, 0x100E, "Intel 82540EM", "e1000"),
    NicId(REALTEK, 0x8168, "Realtek RTL8111/8168", "r8169", RTL8168_FIRMWARE),
    NicId(REALTEK, 0x8161, "Realtek RTL8111", "r8169", RTL8168_FIRMWARE),
    NicId(REALTEK, 0x8125, "Realtek RTL8125", "r8169", RTL8125_FIRMWARE),
    NicId(REALTEK, 0x3000, "Realtek Killer E3000", "r8169", RTL8125_FIRMWARE),
    NicId(VIRTIO, 0x1000, "virtio network (transitional)", "virtio_pci"),
    NicId(VIRTIO, 0x1041, "virtio network", "virtio_pci"),
)

# virtio_pci claims the card and makes a virtio device of it; virtio_net drives that one.
NETWORK_MODULES = (*sorted({nic.module for nic in SUPPORTED_NICS}), "virtio_net", "realtek")

# What `duckd --probe` reads: power limits, temperatures, machine checks, memory errors; randomness for ssh in a VM.
PROBE_MODULES = ("msr", "intel_rapl_msr", "coretemp", "x86_pkg_temp_thermal", "igen6_edac", "nvram", "virtio_rng")
