"""The page as Markdown: what a mail or a ticket shows. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from duckfleet.fleet.report.html import bag, moment
from duckfleet.fleet.report.page import Page

NUM_PER_CENT = 100


def render_markdown(page: Page) -> str:
    """The whole page, without pictures."""
    return "\n".join(_lines(page)) + "\n"


def _lines(page: Page) -> Iterator[str]:
    yield f"# {_plain(page.fleet)}: {page.verdict}"
    yield ""
    yield f"{moment(page.at_s)}; " + (
        f"the last one was of {moment(page.previous_at_s)}" if page.previous_at_s else "the first one"
    )
    if page.undelivered:
        yield from ("", "## Reports that did not arrive", "")
        for item in page.undelivered:
            told = (
                f"arrived at {moment(item.arrived_at_s)}" if item.arrived_at_s else f"tried {item.num_attempts} times"
            )
            yield f"- {moment(item.report_at_s)} to {_plain(item.target)}: {_plain(item.error)}; {told}"
    yield from ("", "## What changed", "")
    if page.previous_error:
        yield _plain(page.previous_error)
    if not page.previous_at_s:
        yield "There is no earlier report to compare with."
    elif not page.changes:
        yield "Nothing."
    for change in page.changes:
        yield f"- {change.direction}: **{_plain(change.duck or 'fleet')}** {_plain(change.text)}"
    yield from _work(page)
    yield from _findings(page)
    yield from ("", "## Board", "", "| duck | rack | state | finding | remark |", "|---|---|---|---|---|")
    for cell in page.cells:
        remark = "; ".join(cell.holds) or cell.remark
        yield "| " + " | ".join(map(_plain, (cell.duck, cell.rack, cell.state, cell.severity, remark))) + " |"
    if page.trends:
        yield from (
            "",
            "## Trends (newest values)",
            "",
            "| measurement | lowest | median | highest |",
            "|---|---|---|---|",
        )
    for trend in page.trends:
        newest = sorted(series.values[-1] for series in trend.series)
        middle = (newest[(len(newest) - 1) // 2] + newest[len(newest) // 2]) / 2
        yield f"| {_plain(trend.title)}, {trend.unit} | {newest[0]:.4g} | {middle:.4g} | {newest[-1]:.4g} |"
    if page.unknown:
        yield from ("", "## Unknown (nothing is concluded from it)", "")
        for line in page.unknown:
            yield f"- {_plain(line.source)}: {_plain(line.reason)} ({', '.join(map(_plain, line.ducks))})"


def _work(page: Page) -> Iterator[str]:
    yield from ("", "## Where to walk", "")
    if not page.work:
        yield "Nothing to do: no duck has a finding."
        return
    if parts := bag(page):
        yield "Bring: " + ", ".join(f"{count} × {_plain(part)}" for part, count in parts)
    for place in dict.fromkeys(work.place for work in page.work):
        yield from ("", f"### {place}", "")
        for work in page.work:
            if work.place == place:
                yield f"- **{_plain(work.rack or '–')} {_plain(work.duck)}** ({work.severity}): {_plain(work.title)}"
                yield f"  - likely: {_plain(', '.join(work.likely))}"
                yield f"  - first: {_plain(work.first)}" + (f"; then: {_plain(work.then)}" if work.then else "")


def _findings(page: Page) -> Iterator[str]:
    yield from ("", "## Findings", "")
    if not page.findings:
        yield "None."
    for finding in page.findings:
        causes = ", ".join(f"{_plain(cause.text)} {NUM_PER_CENT * cause.weight:.0f} %" for cause in finding.causes)
        yield f"- {finding.severity}: **{_plain(finding.duck)}** {_plain(finding.title)}"
        yield f"  - causes: {causes}"
        yield from (f"  - seen: {_plain(line)}" for line in finding.evidence)
        yield f"  - next: {_plain(finding.next_test)} (about {finding.next_cost_min} min)"


def _plain(text: str) -> str:
    """Text from ducks and people stays text: no markup, no lines of its own, no cells of its own."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
