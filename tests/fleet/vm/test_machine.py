"""Virtual machines as text and bytes: plans, command lines, firmware tables, cables; nothing is started."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.fleet.vm import qemu, smbios
from duckfleet.fleet.vm.faults import FAULTS, Condition, cable_commands, check_fault
from duckfleet.fleet.vm.lab import _site
from duckfleet.fleet.vm.plan import plan_lab
from duckfleet.fleet.vm.qemu import MachineFiles
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.sitefile import parse_site


@given(st.integers(1, 32), st.sampled_from(["mixed", "bios", "uefi"]))
def test_every_plan_is_a_site(num_ducks, firmware):
    plan = plan_lab("beef", num_ducks, firmware=firmware)
    site = parse_site(_site(plan, Path("/state/lab")), Path("duckfleet.toml"))
    assert {duck.mac for duck in site.ducks} == {machine.mac for machine in plan.machines}
    assert site.domains == plan.domains
    assert len({machine.tap for machine in plan.machines}) == num_ducks
    assert all(len(machine.tap) < 16 for machine in plan.machines)


def test_a_mixed_lab_has_both_kinds_in_each_domain():
    machines = plan_lab("beef", 4).machines
    assert [machine.firmware for machine in machines] == ["bios", "uefi", "bios", "uefi"]


@pytest.mark.parametrize(
    "arguments",
    [{"num_ducks": 0}, {"num_ducks": 33}, {"num_ducks": 9, "num_domains": 1}, {"num_ducks": 2, "num_domains": 3},
     {"num_ducks": 1, "firmware": "coreboot"}],
)  # fmt: skip
def test_labs_that_do_not_fit_are_refused(arguments):
    with pytest.raises(OperatorError):
        plan_lab("beef", **arguments)


def command(firmware: str, *faults: str) -> str:
    machine = plan_lab("beef", 1, firmware=firmware).machines[0]
    files = MachineFiles(Path("/lab/console"), Path("/lab/vars"), Path("/lab/smbios"))
    return " ".join(qemu.command(machine, Condition(frozenset(faults)), files))


@pytest.mark.parametrize("firmware", ["bios", "uefi"])
def test_a_healthy_machine_boots_from_its_card_without_kvm(firmware):
    text = command(firmware)
    assert "tcg" in text and "kvm" not in text
    assert "bootindex=0" in text and "speed=2500" in text
    assert "-m 1024 " in text and "base=utc" in text
    assert ("pflash" in text) == (firmware == "uefi")


@pytest.mark.parametrize(
    ("fault", "has", "has_not"),
    [
        ("dead_cmos", ["base=2000-01-01T00:00:00", "e1000e", "romfile="], ["bootindex", "virtio-net"]),
        ("bad_pxe_order", ["base=utc", "e1000e"], ["bootindex", "2000"]),
        ("default_rtc", ["base=2000-01-01T00:00:00", "bootindex=0"], []),
        ("missing_dimm", ["-m 512 "], []),
        ("slow_link", ["speed=100,"], []),
        ("no_wol", ["bootindex=0"], []),
    ],
)
def test_what_a_fault_does_to_the_machine(fault, has, has_not):
    text = command("bios", fault)
    assert all(word in text for word in has), text
    assert not any(word in text for word in has_not), text


def test_only_a_deaf_machine_does_not_hear():
    deaf = {name for name in FAULTS if not Condition(frozenset([name])).hears_magic_packets}
    assert deaf == {"no_wol"}
    with pytest.raises(OperatorError, match="dead_cmos"):
        check_fault("flat_tyre")


def text_of(faults) -> str:
    return "\n".join(" ".join(words) + "\n" + text for words, text in cable_commands("d1-101", faults))


def test_a_cable_is_always_made_anew():
    healthy, both = text_of([]), text_of(["slow_link", "lossy_link"])
    assert "delete table netdev cable-d1-101" in healthy
    assert "drop" not in healthy and "tbf" not in healthy
    assert "numgen random mod 100 < 5 drop" in both
    assert "limit rate over 12500 kbytes/second" in both
    assert "tbf rate 100mbit" in both


def structures(table: bytes) -> list[tuple[bytes, list[str]]]:
    """SMBIOS structures as (formatted area, strings): an independent reader (DSP0134, 6.1.2 and 6.1.3)."""
    found = []
    while table:
        area, rest = table[: table[1]], table[table[1] :]
        text, _, table = rest.partition(b"\0\0")
        if not text.strip(b"\0"):
            table = rest[2:]
        found.append((area, [part.decode() for part in text.split(b"\0") if part]))
    return found


def test_memory_modules_as_the_firmware_tells():
    full, empty = structures(smbios.memory_devices([512, 0]))
    for area, _ in (full, empty):
        assert area[0] == 17
        assert len(area) == area[1] == 40
    assert struct.unpack_from("<H", full[0], 0x0C) == (512,)
    assert struct.unpack_from("<H", empty[0], 0x0C) == (0,)
    assert [strings[area[0x10] - 1] for area, strings in (full, empty)] == ["DIMM 0", "DIMM 1"]
    assert [strings[area[0x11] - 1] for area, strings in (full, empty)] == ["BANK 0", "BANK 1"]
    assert struct.unpack_from("<H", full[0], 0x15) == (3200,)
    assert full[1][full[0][0x17] - 1] == "Lab"
    assert empty[0][0x17] == 0
