"""What a process lab looks like: addresses, MACs and ports. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from duckfleet.fleet.lab.size import DUCKS_PER_DOMAIN, count_domains, lab_mac
from duckfleet.inventory.site import Domain, Duck

BROADCAST = "127.255.255.255"  # a real broadcast on loopback: every socket bound to it hears it
PORT_BLOCK = 16
FIRST_PORT = 47_000
LAST_PORT = 47_992


@dataclass(frozen=True, slots=True)
class LabPlan:
    """A process lab. `lab_id` is in every MAC, so that two labs on one machine never wake each other's ducks."""

    lab_id: str  # 4 hex digits
    base_port: int
    domains: tuple[Domain, ...]
    ducks: tuple[Duck, ...]

    @property
    def wol_port(self) -> int:
        return self.base_port

    @property
    def control_port(self) -> int:
        return self.base_port + 1


def plan_lab(lab_id: str, num_ducks: int, *, num_domains: int | None = None, base_port: int = FIRST_PORT) -> LabPlan:
    """`num_ducks` ducks at 127.21.[1-4].[101-108], eight a domain unless more domains are asked for.

    Raises `OperatorError` for a fleet that does not fit.
    """
    count = count_domains(num_ducks, num_domains)
    domains = []
    ducks: list[Duck] = []
    for index in range(count):
        size = num_ducks // count + (index < num_ducks % count)
        domain = Domain(
            name=f"d{index + 1}",
            interface="lo",
            host_address=f"127.21.{index + 1}.1",
            prefix_len=24,
            addresses=tuple(f"127.21.{index + 1}.{101 + i}" for i in range(DUCKS_PER_DOMAIN)),
            broadcast=BROADCAST,
            mtu=1500,
            wol_port=base_port,
            control_port=base_port + 1,
            data_port=base_port + 2 + index,
        )
        domains.append(domain)
        ducks += [_duck(lab_id, domain, index + 1, 101 + i) for i in range(size)]
    return LabPlan(lab_id, base_port, tuple(domains), tuple(ducks))


def _duck(lab_id: str, domain: Domain, domain_number: int, host_number: int) -> Duck:
    mac = lab_mac(lab_id, domain_number, host_number)
    return Duck(mac, f"duck{domain_number}{host_number}", f"127.21.{domain_number}.{host_number}", domain.name)


def with_port(plan: LabPlan, base_port: int) -> LabPlan:
    """The same lab on other ports."""
    shift = base_port - plan.base_port
    domains = tuple(
        replace(
            domain,
            wol_port=domain.wol_port + shift,
            control_port=domain.control_port + shift,
            data_port=domain.data_port + shift,
        )
        for domain in plan.domains
    )
    return replace(plan, base_port=base_port, domains=domains)
