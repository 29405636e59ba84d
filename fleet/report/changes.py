"""What changed between two reports. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from duckfleet.fleet.lifecycle import ANSWERING
from duckfleet.fleet.report.page import SEVERITIES, Cell, Change, FindingItem, Page, Trend

MOVED = 0.05  # a duck's newest value against that of the last report; less is noise


def compare(old: Page, new: Page) -> tuple[Change, ...]:
    """What got worse, then what got better, then the rest; of each in the order of the board."""
    found = [*_findings(old, new), *_ducks(old, new), *_trends(old, new)]
    order = {cell.duck: number for number, cell in enumerate((*new.cells, *old.cells))}
    rank = ("worse", "better", "other")
    return tuple(sorted(found, key=lambda change: (rank.index(change.direction), order.get(change.duck, -1))))


def _findings(old: Page, new: Page) -> Iterator[Change]:
    before = {(item.mac, item.code): item for item in old.findings}
    now = {(item.mac, item.code): item for item in new.findings}
    for key, item in now.items():
        past = before.get(key)
        if past is None:
            yield Change("worse", item.duck, f"new: {item.title} ({item.severity}, {_top(item)})")
        elif past.severity != item.severity:
            is_worse = SEVERITIES.index(item.severity) < SEVERITIES.index(past.severity)
            direction = "worse" if is_worse else "better"
            yield Change(direction, item.duck, f"{item.title}: was {past.severity}, is {item.severity}")
        elif past.causes[:1] and item.causes[:1] and past.causes[0].code != item.causes[0].code:
            yield Change("other", item.duck, f"{item.title}: likeliest was {_top(past)}, is {_top(item)}")
    for key, past in before.items():
        if key not in now:
            yield Change("better", past.duck, f"gone: {past.title}")


def _top(item: FindingItem) -> str:
    return f"likely {item.causes[0].text}" if item.causes else "no cause known"


def _ducks(old: Page, new: Page) -> Iterator[Change]:
    before = {cell.mac: cell for cell in old.cells}
    now = {cell.mac: cell for cell in new.cells}
    for mac, cell in now.items():
        past = before.get(mac)
        if past is None:
            yield Change("other", cell.duck, "is new in the site file")
            continue
        if past.state != cell.state:
            yield Change(_direction(past, cell), cell.duck, f"was {past.state}, is {cell.state}")
        for hold in cell.holds:
            if hold not in past.holds:
                yield Change("worse", cell.duck, f"held: {hold}")
        for hold in past.holds:
            if hold not in cell.holds:
                yield Change("better", cell.duck, f"no longer held: {hold}")
    for mac, past in before.items():
        if mac not in now:
            yield Change("other", past.duck, "is no longer in the site file")


def _direction(past: Cell, cell: Cell) -> str:
    if past.is_ready != cell.is_ready:
        return "better" if cell.is_ready else "worse"
    if (past.state in ANSWERING) != (cell.state in ANSWERING):
        return "better" if cell.state in ANSWERING else "worse"
    return "worse" if cell.state in ("degraded", "lost", "quarantined") else "other"


def _trends(old: Page, new: Page) -> Iterator[Change]:
    """Only what a duck did by itself: where the whole fleet moved, the fleet is told once."""
    before = {trend.name: trend for trend in old.trends}
    for trend in new.trends:
        past = before.get(trend.name)
        if past is None or past.unit != trend.unit:
            continue
        ratios = {duck: ratio for duck, ratio in _ratios(past, trend).items() if ratio > 0}
        if not ratios:
            continue
        fleet = median(ratios.values()) if len(ratios) > 2 else 1.0
        if abs(fleet - 1) > MOVED:
            yield Change(_moved(trend, fleet), "", f"{trend.title} of the fleet: {fleet - 1:+.0%} (median)")
        for duck, ratio in ratios.items():
            if abs(ratio / fleet - 1) > MOVED:
                yield Change(_moved(trend, ratio), duck, f"{trend.title}: {ratio - 1:+.0%}")


def _ratios(past: Trend, trend: Trend) -> dict[str, float]:
    """The newest value by that of the last report, of ducks that were measured since."""
    last = {series.duck: series for series in past.series if series.values}
    ratios = {}
    for series in trend.series:
        old = last.get(series.duck)
        if old is not None and series.values and series.times_s[-1] > old.times_s[-1] and old.values[-1]:
            ratios[series.duck] = series.values[-1] / old.values[-1]
    return ratios


def _moved(trend: Trend, ratio: float) -> str:
    return "worse" if (ratio < 1) == trend.low_is_bad else "better"
