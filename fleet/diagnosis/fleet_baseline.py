"""The fleet's own baseline: medians and MADs of its latest probes, and what most of it has. Pure.

What the site file states comes first. What it does not state is learnt where at least three ducks were probed and
most of them agree; otherwise nothing is expected, and nothing is concluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from duckfleet.fleet.diagnosis import probe_health, probe_report
from duckfleet.fleet.diagnosis.probe_report import Report
from duckfleet.fleet.diagnosis.sources.around.baseline import Baseline, Expected, Figure, Firmware
from duckfleet.fleet.diagnosis.sources.raw import rows, table, whole, words
from duckfleet.fleet.diagnosis.stragglers import baseline_figures
from duckfleet.inventory.site import Duck, Site

MIN_DUCKS = 3
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class Probed:
    """A duck's latest report, and the latest value of each thing that was measured over time."""

    report: Report
    measured: Mapping[str, float]


def baseline_of(site: Site, duck: Duck, probed: Mapping[str, Probed]) -> Baseline:
    """For one duck: the figures of all, and what is expected of this one. `probed` is by MAC."""
    by_mac = {member.mac: member for member in site.ducks if member.mac in probed}
    figures: dict[str, Figure] = {}
    domains: dict[str, dict[str, Figure]] = {}
    for name, values in _figures(by_mac, probed).items():
        common, parts = baseline_figures(values, {mac: member.domain for mac, member in by_mac.items()})
        if common is not None:
            figures[name] = common
        for domain, figure in parts.items():
            domains.setdefault(domain, {})[name] = figure
    learnt = _learnt([probed[mac].report for mac in sorted(by_mac)])
    mtu = site.domain(duck.domain).mtu
    expect = replace(
        learnt,
        ram_mib=duck.expect.ram_bytes >> 20 if duck.expect.ram_bytes else learnt.ram_mib,
        link_mbps=duck.expect.link_mbps or learnt.link_mbps,
        mtu=mtu,
        power_limit_uw=_usual_power_limit(duck.mac, by_mac, probed),
    )
    return Baseline(figures, domains, expect, _firmware([probed[mac].report for mac in sorted(by_mac)]))


def _figures(by_mac: Mapping[str, Duck], probed: Mapping[str, Probed]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for mac in by_mac:
        memory = probe_report.meminfo(probed[mac].report).value
        link = probe_report.link(probed[mac].report, mac).value
        values = {
            "mem_total_kb": float(memory.total_kib) if memory else None,
            "link_mbps": float(link.speed_mbps) if link and link.speed_mbps else None,
            **{FIGURE_OF.get(name, name): value for name, value in probed[mac].measured.items()},
        }
        for name, value in values.items():
            if value:
                found.setdefault(name, {})[mac] = value
    return found


FIGURE_OF = {"read_bandwidth": "read_bytes_per_s", "write_bandwidth": "write_bytes_per_s"}
"""What the store calls a measurement, and what a baseline does."""


def _learnt(reports: Sequence[Report]) -> Expected:
    boards = [found for report in reports if (found := probe_report.smbios(report).value)]
    with_slots = [board for board in boards if board.slots]
    speeds = [
        min(slot.configured_mt_per_s for slot in board.modules if slot.configured_mt_per_s)
        for board in with_slots
        if any(slot.configured_mt_per_s for slot in board.modules)
    ]
    links = [
        float(card["speed_mbit_per_s"])
        for report in reports
        for card in rows(report.values, "nics")
        if isinstance(card, Mapping) and whole(card.get("speed_mbit_per_s")) and card.get("carrier") == 1
    ]
    cores = [count for report in reports if (count := whole(table(report.values, "cpu").get("num_cpus")))]
    link = most(links)
    return Expected(
        ram_mib=most([total for board in with_slots if (total := board.total_mib)]),
        num_dimms=most([len(board.modules) for board in with_slots]),
        ram_mt_per_s=most(speeds),
        link_mbps=int(link) if link else None,
        num_cores=most(cores),
    )


def _usual_power_limit(mac: str, by_mac: Mapping[str, Duck], probed: Mapping[str, Probed]) -> int | None:
    """What most boxes with the same CPU are held to: another model has another limit, and is none the worse for it."""
    if mac not in probed:
        return None
    model = _cpu_model(probed[mac].report)
    limits = [
        found.holding_uw
        for other in sorted(by_mac)
        if _cpu_model(probed[other].report) == model and (found := probe_health.power(probed[other].report).value)
    ]
    return most([limit for limit in limits if limit])


def _cpu_model(report: Report) -> str:
    return words(table(report.values, "cpu").get("model"))


def most(values: Sequence[_V]) -> _V | None:
    """What more than half of at least three have."""
    if len(values) < MIN_DUCKS:
        return None
    value, count = Counter(values).most_common(1)[0]
    return value if count * 2 > len(values) else None


def _firmware(reports: Sequence[Report]) -> dict[str, Firmware]:
    """The newest firmware that any duck of a product has."""
    newest: dict[str, Firmware] = {}
    for report in reports:
        board = probe_report.smbios(report).value
        if board is None or not board.product or board.bios_date is None:
            continue
        known = newest.get(board.product)
        if known is None or known.released is None or known.released < board.bios_date:
            newest[board.product] = Firmware(board.bios_version, board.bios_date)
    return newest
