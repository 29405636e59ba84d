"""What a lab of virtual machines looks like: addresses, MACs, firmware, memory. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.fleet.lab.size import DUCKS_PER_DOMAIN, count_domains, lab_mac
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.site import DEFAULT_CONTROL_PORT, DEFAULT_DATA_PORT, DEFAULT_WOL_PORT, Domain, Duck

FIRMWARE = ("bios", "uefi")
NUM_SLOTS = 2
DEFAULT_MODULE_MIB = 512  # of each memory module; a duck has two
LINK_MBPS = 2500


@dataclass(frozen=True, slots=True)
class VmDuck:
    """One virtual duck and its place in the network."""

    name: str
    mac: str
    address: str
    bridge: str
    tap: str
    firmware: str  # of FIRMWARE
    module_mib: int

    @property
    def memory_mib(self) -> int:
        return NUM_SLOTS * self.module_mib


@dataclass(frozen=True, slots=True)
class VmLabPlan:
    """A lab: its domains (interfaces are bridges), its ducks as the site file knows them and as machines."""

    lab_id: str  # 4 hex digits
    domains: tuple[Domain, ...]
    ducks: tuple[Duck, ...]
    machines: tuple[VmDuck, ...]


def plan_lab(
    lab_id: str,
    num_ducks: int,
    *,
    num_domains: int | None = None,
    firmware: str = "mixed",
    module_mib: int = DEFAULT_MODULE_MIB,
) -> VmLabPlan:
    """`num_ducks` ducks at 10.21.[1-4].[101-108]; BIOS and UEFI in turn, or all of one kind.

    Raises `OperatorError` for a lab that does not fit.
    """
    count = count_domains(num_ducks, num_domains)
    if firmware not in ("mixed", *FIRMWARE):
        raise OperatorError(f"firmware {firmware!r}: is one of mixed, {', '.join(FIRMWARE)}")
    domains = tuple(_domain(number) for number in range(1, count + 1))
    ducks, machines = [], []
    for index in range(num_ducks):
        domain = domains[index % count]
        number, host = index % count + 1, 101 + index // count
        mac = lab_mac(lab_id, number, host)
        duck = Duck(
            mac, f"duck{number}{host}", f"10.21.{number}.{host}", domain.name, rack=f"lab {number}-{host - 100}"
        )
        kind = FIRMWARE[index % 2] if firmware == "mixed" else firmware
        ducks.append(duck)
        machines.append(
            VmDuck(duck.name, mac, duck.address, domain.interface, f"{domain.name}-{host}", kind, module_mib)
        )
    return VmLabPlan(lab_id, domains, tuple(ducks), tuple(machines))


def _domain(number: int) -> Domain:
    return Domain(
        name=f"d{number}",
        interface=f"d{number}",
        host_address=f"10.21.{number}.1",
        prefix_len=24,
        addresses=tuple(f"10.21.{number}.{101 + i}" for i in range(DUCKS_PER_DOMAIN)),
        broadcast=f"10.21.{number}.255",
        mtu=1500,
        wol_port=DEFAULT_WOL_PORT,
        control_port=DEFAULT_CONTROL_PORT,
        data_port=DEFAULT_DATA_PORT,
    )
