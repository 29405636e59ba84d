"""Sections of one kind of layer, each made once and shared: a plan of a large mixture has millions of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from duckfleet.inventory.plan import UNIT_COLUMNS, Section

from .shape import FfnShape, units
from .sizes import TILE, section_bytes

Ints = npt.NDArray[np.int64]
_UNITS_OF_TILE = TILE // UNIT_COLUMNS


class SectionPool:
    """Looks sections up by expert, first unit and number of units, as arrays."""

    def __init__(self, ffn: FfnShape, hidden: int, format: str) -> None:
        self._experts = [expert for expert, _ in ffn.experts]
        self.units: Ints = np.array([units(cols) for _, cols in ffn.experts], dtype=np.int64)
        self._hidden, self._format = hidden, format
        self._made: dict[int, Section] = {}
        self._bytes: Ints = np.zeros((_UNITS_OF_TILE, 0), dtype=np.int64)

    def section_bytes(self, first: Ints, count: Ints) -> Ints:
        """Logical bytes of sections of `count` units from unit `first` on, for arrays of any one shape; 0 for none."""
        most = int(count.max(initial=0))
        if most >= self._bytes.shape[1]:
            self._bytes = np.array(
                [[self._size(first, n) for n in range(most + 1)] for first in range(_UNITS_OF_TILE)], dtype=np.int64
            )
        found: Ints = self._bytes[first % _UNITS_OF_TILE, count]
        return found

    def _size(self, first: int, count: int) -> int:
        section = Section(0, first * UNIT_COLUMNS, count * UNIT_COLUMNS)
        return section_bytes(section, self._hidden, self._format) if count else 0

    def sections(self, experts: Ints, first: Ints, count: Ints) -> list[Section]:
        """One section for each place of three arrays; `experts` are indices."""
        most = int(self.units.max())
        keys = ((experts * most + first) * (most + 1) + count).tolist()
        made = self._made
        found = list(map(made.get, keys))
        for i, section in enumerate(found):
            if section is None:
                expert = self._experts[experts[i]]
                section = Section(expert, int(first[i]) * UNIT_COLUMNS, int(count[i]) * UNIT_COLUMNS)
                found[i] = made[keys[i]] = section
        return found  # type: ignore[return-value]  # no None is left
