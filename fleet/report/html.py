"""The page as one HTML file that stands alone: style and pictures inside, no script, nothing fetched."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.resources import files

from duckfleet.fleet.console import age
from duckfleet.fleet.report.page import SEVERITIES, Page, Trend
from duckfleet.fleet.report.plots import MAX_MARKED, history_svg, trend_svg

MIN_HISTORY = 2  # reports: one is no curve


@dataclass(frozen=True, slots=True)
class Picture:
    """One plot with what it says in words."""

    title: str
    svg: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def render_html(page: Page) -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    folder = files("duckfleet.fleet.report")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters.update(moment=moment, age=lambda span_s: age(max(0.0, span_s)))
    template = environment.from_string(folder.joinpath("page.html.j2").read_text())
    pictures = _pictures(page)
    return template.render(
        page=page,
        style=Markup(folder.joinpath("page.css").read_text()),
        domains=list(dict.fromkeys(cell.domain for cell in page.cells)),
        severities=SEVERITIES,
        pictures=[(picture, Markup(picture.svg)) for picture in pictures],
        bag=bag(page),
        places=list(dict.fromkeys(work.place for work in page.work)),
        anchors=_anchors(page),
        marks=MARKS,
    )


MARKS = {"critical": "✖", "degraded": "▲", "repair": "◆", "note": "●", "worse": "▼", "better": "▲", "other": "•"}
"""Severity and direction are never told by colour alone."""


def moment(at_s: float) -> str:
    """Date and time in UTC, as the findings' evidence has it."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at_s))


def bag(page: Page) -> list[tuple[str, int]]:
    """What to bring on the walk: (part, how many)."""
    counts: dict[str, int] = {}
    for work in page.work:
        for part in work.parts:
            counts[part] = counts.get(part, 0) + 1
    return sorted(counts.items())


def _anchors(page: Page) -> dict[str, str]:
    """Where a duck's worst finding stands, by MAC; findings come worst first."""
    anchors: dict[str, str] = {}
    for finding in page.findings:
        anchors.setdefault(finding.mac, finding.anchor)
    return anchors


def _pictures(page: Page) -> list[Picture]:
    with_finding = list(dict.fromkeys(finding.duck for finding in page.findings))
    made = []
    for number, trend in enumerate(page.trends):
        marked = _marked(trend, with_finding)
        made.append(
            Picture(
                trend.title,
                trend_svg(trend, marked, f"t{number}"),
                _note(trend),
                ("duck", "newest", "first", "change"),
                _rows(trend),
            )
        )
    if len(page.history) >= MIN_HISTORY:
        rows = tuple(
            (moment(past.at_s), str(past.num_ducks), str(past.num_ready), str(past.num_findings))
            for past in reversed(page.history)
        )
        note = f"Over the last {len(page.history)} reports."
        columns = ("report", "ducks", "can serve", "findings")
        made.append(Picture("Ducks that can serve", history_svg(page.history, "h"), note, columns, rows))
    return made


def _marked(trend: Trend, with_finding: list[str]) -> list[str]:
    """Ducks shown by name: those with findings, then the one that stands worst."""
    there = {series.duck: series.values[-1] for series in trend.series}
    chosen = [duck for duck in with_finding if duck in there]
    by_value = sorted(there, key=lambda duck: there[duck], reverse=not trend.low_is_bad)
    if len(there) > 1:
        chosen += [duck for duck in by_value[:1] if duck not in chosen]
    return chosen[:MAX_MARKED]


def _note(trend: Trend) -> str:
    newest = sorted(series.values[-1] for series in trend.series)
    count = len(newest)
    middle = newest[count // 2] if count % 2 else (newest[count // 2 - 1] + newest[count // 2]) / 2
    span = f"{newest[0]:.4g} to {newest[-1]:.4g}" if newest[0] != newest[-1] else f"{newest[0]:.4g}"
    return f"{count} duck{'s' * (count > 1)}, newest values {span} {trend.unit}, median {middle:.4g} {trend.unit}."


def _rows(trend: Trend) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = []
    for series in trend.series:
        first, last = series.values[0], series.values[-1]
        change = f"{last / first - 1:+.1%}" if first and len(series.values) > 1 else ""
        rows.append((series.duck, f"{last:.4g} {trend.unit}", f"{first:.4g} {trend.unit}", change))
    return tuple(rows)
