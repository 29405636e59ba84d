"""Who is slower than the others: median and MAD, with an absolute floor, on two consecutive runs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from duckfleet.fleet.diagnosis.sources.around.baseline import Figure

FLOOR = 0.9  # of the median: less than this is slow, however wide the fleet scatters
MIN_DEVIATIONS = 3.0
MAD_TO_SIGMA = 1.4826  # of a normal distribution
MIN_RUNS = 2


def figure_of(values: Sequence[float]) -> Figure | None:
    """Median and MAD; None for fewer than three values, which have no middle to speak of."""
    if len(values) < 3:
        return None
    median = statistics.median(values)
    return Figure(median, statistics.median(abs(value - median) for value in values)) if median > 0 else None


def is_slow(value: float, figure: Figure) -> bool:
    """Below the floor, and out of the scatter of the others."""
    return value < FLOOR * figure.median and value < figure.median - MIN_DEVIATIONS * MAD_TO_SIGMA * figure.mad


def slow_runs(values: Sequence[float], figure: Figure) -> bool:
    """Whether the last two runs were both slow: one alone may have had company."""
    last = values[-MIN_RUNS:]
    return len(last) == MIN_RUNS and all(is_slow(value, figure) for value in last)


def baseline_figures(
    values: Mapping[str, float], domains: Mapping[str, str]
) -> tuple[Figure | None, dict[str, Figure]]:
    """The fleet's figure and each domain's, of one measurement: duck -> value, duck -> domain."""
    by_domain: dict[str, list[float]] = {}
    for duck, value in values.items():
        by_domain.setdefault(domains.get(duck, ""), []).append(value)
    figures = {domain: figure_of(members) for domain, members in by_domain.items()}
    return figure_of(list(values.values())), {domain: figure for domain, figure in figures.items() if figure}
