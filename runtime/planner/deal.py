"""A fair order in which units are dealt to ranks: at every moment each rank is less than one unit from its quota.

The order is a cycle: a rank of weight a_i out of A appears a_i times in A steps. It is made by earliest deadline
first, R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980): no prefix is further from
its quota than 1 - 1/(2n-2). Equal weights give 0, 1, 2, ... and so plain rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import gcd, isfinite

STEPS_PER_RANK = 128  # resolution of unequal weights: a rank's share is met to within 1/128 of the average


@dataclass(frozen=True, slots=True)
class Deal:
    """A cycle of ranks. `prefix[rank][n]` counts the rank's turns among the first n steps of the cycle."""

    order: tuple[int, ...]
    prefix: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        return len(self.order)

    def dealt(self, rank: int, num_units: int) -> int:
        """How many of the first `num_units` units fall to `rank`."""
        cycles, rest = divmod(num_units, self.length)
        counts = self.prefix[rank]
        return cycles * counts[-1] + counts[rest]


def deal(weights: Sequence[float]) -> Deal:
    """The cycle for these weights (any positive scale)."""
    if not weights or any(not isfinite(w) or w <= 0 for w in weights):
        raise ValueError(f"weights of ranks must be positive and finite, got {list(weights)}")
    turns = _integer_weights(weights)
    order = _earliest_deadline(turns)
    prefix = tuple(tuple(accumulate((int(r == rank) for r in order), initial=0)) for rank in range(len(turns)))
    return Deal(tuple(order), prefix)


def _integer_weights(weights: Sequence[float]) -> list[int]:
    """Largest remainders; at least one turn for every rank."""
    if all(w == weights[0] for w in weights):
        return [1] * len(weights)
    steps = STEPS_PER_RANK * len(weights)
    total = sum(weights)
    exact = [w / total * steps for w in weights]
    turns = [max(1, int(e)) for e in exact]
    by_remainder = sorted(range(len(weights)), key=lambda r: (int(exact[r]) - exact[r], r))
    missing = steps - sum(turns)
    for r in by_remainder[: max(0, missing)]:
        turns[r] += 1
    common = gcd(*turns)
    return [t // common for t in turns]


def _earliest_deadline(turns: list[int]) -> list[int]:
    n = len(turns)
    if n == 1:
        return [0]
    total = sum(turns)
    slack = 2 * n - 2
    given = [0] * n
    order: list[int] = []
    for step in range(1, total + 1):
        best, best_deadline = -1, (0, 1)
        for rank in range(n):
            if (turns[rank] * step - given[rank] * total) * slack < total:
                continue  # not yet due
            # deadline = (given + 1 - 1/slack) * total / turns, compared as fractions
            deadline = ((given[rank] + 1) * slack - 1, turns[rank])
            if best < 0 or deadline[0] * best_deadline[1] < best_deadline[0] * deadline[1]:
                best, best_deadline = rank, deadline
        order.append(best)
        given[best] += 1
    return order
