"""Trends as SVG pictures for a page: drawn by matplotlib, coloured by the page's own variables (light and dark)."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from statistics import median
from typing import Any

from duckfleet.fleet.report.page import Past, Trend

# Stand-ins that no style uses, exchanged for the page's variables once the picture is text.
_INK, _FAINT, _MAIN = "#010203", "#010204", "#010205"
_MARKED = ("#010206", "#010207", "#010208")
_VARIABLES = {
    _INK: "var(--ink-soft)", _FAINT: "var(--line)", _MAIN: "var(--accent)",
    _MARKED[0]: "var(--critical)", _MARKED[1]: "var(--degraded)", _MARKED[2]: "var(--repair)",
}  # fmt: skip
SIZE_IN = (3.7, 2.15)  # of a phone's width: a wider page makes it larger, none makes it smaller
FONT_PT = 7.5
MAX_MARKED = len(_MARKED)
_MANY = 12  # values: with more, lines carry no dots


def trend_svg(trend: Trend, marked: Collection[str], prefix: str) -> str:
    """Every duck a faint line, the median a strong one; `marked` ducks, at most three, by name.

    `prefix` keeps the ids of several pictures in one page apart.
    """
    figure, axes = _figure()
    shown = [series for series in trend.series if series.duck in marked][:MAX_MARKED]
    for series in trend.series:
        if series not in shown:
            _line(axes, series.times_s, series.values, color=_INK, linewidth=0.7, alpha=0.35)
    _line(axes, *_median(trend), color=_MAIN, linewidth=2.0, label="median")
    for color, series in zip(_MARKED, shown, strict=False):
        _line(axes, series.times_s, series.values, color=color, linewidth=1.6, label=series.duck)
    axes.set_ylabel(trend.unit)
    _scale(axes, [value for series in trend.series for value in series.values])
    return _svg(figure, axes, f"{trend.title} in {trend.unit}, over time", prefix)


def history_svg(history: Sequence[Past], prefix: str) -> str:
    """How many ducks could serve and how many findings there were, report by report."""
    figure, axes = _figure()
    times = [past.at_s for past in history]
    _line(axes, times, [past.num_ducks for past in history], color=_FAINT, linewidth=1.4, label="ducks")
    _line(axes, times, [past.num_ready for past in history], color=_MAIN, linewidth=2.0, label="can serve")
    _line(axes, times, [past.num_findings for past in history], color=_MARKED[0], linewidth=1.6, label="findings")
    axes.set_ylim(bottom=0)
    axes.yaxis.get_major_locator().set_params(integer=True)
    return _svg(figure, axes, "ducks that can serve, and findings, by report", prefix)


def _median(trend: Trend) -> tuple[list[float], list[float]]:
    """By hour of measuring: ducks of one probe are not measured at the same second."""
    points = sorted(point for series in trend.series for point in zip(series.times_s, series.values, strict=True))
    times, values = [], []
    for _, group in itertools.groupby(points, key=lambda point: int(point[0] // 3600)):
        together = list(group)
        times.append(sum(at for at, _ in together) / len(together))
        values.append(median(value for _, value in together))
    return times, values


def _figure() -> tuple[Any, Any]:
    # The object interface: no display is looked for, and no global state is left behind.
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, layout="constrained")
    axes = figure.add_subplot()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(_FAINT)
    axes.tick_params(colors=_INK, labelsize=FONT_PT, color=_FAINT)
    axes.yaxis.label.set_color(_INK)
    axes.yaxis.label.set_fontsize(FONT_PT)
    axes.grid(axis="y", color=_FAINT, linewidth=0.5)
    return figure, axes


def _line(axes: Any, times_s: Sequence[float], values: Sequence[float], **style: Any) -> None:
    when = [datetime.fromtimestamp(at_s, UTC) for at_s in times_s]
    axes.plot(when, values, marker="o" if len(when) <= _MANY else None, markersize=3, **style)


def _scale(axes: Any, values: Sequence[float]) -> None:
    """A steady figure shall look steady: at least a tenth of the value is shown, not the noise in full height."""
    low, high = min(values), max(values)
    room = max(0.15 * (high - low), 0.05 * max(abs(low), abs(high)), 1e-9)
    axes.set_ylim(low - room, high + room)


def _svg(figure: Any, axes: Any, label: str, prefix: str) -> str:
    import matplotlib
    from matplotlib import dates

    untyped: Any = dates
    locator = untyped.AutoDateLocator(minticks=2, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator))
    axes.xaxis.get_offset_text().set_color(_INK)
    axes.xaxis.get_offset_text().set_fontsize(FONT_PT)
    axes.legend(loc="best", fontsize=FONT_PT, frameon=False, labelcolor=_INK)
    sink = io.StringIO()
    # Text stays text, so that it can be read out and searched; a fixed salt makes equal pictures equal texts.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        figure.savefig(sink, format="svg", transparent=True, metadata={"Date": None})
    return _inlined(sink.getvalue(), label, prefix)


def _inlined(text: str, label: str, prefix: str) -> str:
    """Only the picture, its ids its own, its colours the page's."""
    from markupsafe import escape

    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", text)
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would be the whole page's
    text = re.sub(r"font-family: [^;\"]*", "font-family: inherit", text)
    text = re.sub(r"font: ([0-9.]+px)[^;\"]*", r"font-size: \1; font-family: inherit", text)
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, variable)
    head, _, rest = text.partition(">")
    return f'{head} role="img" aria-label="{escape(label)}">{rest}'
