"""The shape of a model as the planner sees it: its FFN layers and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from duckfleet.inventory.plan import UNIT_COLUMNS


@dataclass(frozen=True, slots=True)
class FfnShape:
    """One FFN layer. `num_experts` 0 is a dense layer: expert 0 with `intermediate` columns.

    Several shared experts of a model are one here, as wide as all of them; its id is `num_experts`, so it comes last.
    """

    intermediate: int
    num_experts: int = 0
    shared_intermediate: int = 0  # 0: no shared expert

    def __post_init__(self) -> None:
        if self.intermediate < 1 or self.num_experts < 0 or self.shared_intermediate < 0:
            raise ValueError(f"not a shape of an FFN layer: {self}")
        if self.shared_intermediate and not self.num_experts:
            raise ValueError(f"a dense layer has no shared expert: {self}")

    @property
    def experts(self) -> tuple[tuple[int, int], ...]:
        """(expert id, intermediate columns), ascending."""
        if not self.num_experts:
            return ((0, self.intermediate),)
        routed = tuple((e, self.intermediate) for e in range(self.num_experts))
        return (*routed, (self.num_experts, self.shared_intermediate)) if self.shared_intermediate else routed

    def intermediate_of(self, expert: int) -> int:
        """Columns of one expert of this layer, before padding to whole units."""
        return self.shared_intermediate if self.num_experts and expert == self.num_experts else self.intermediate


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Hidden size and FFN layers; `layers[i]` belongs to decoder layer i."""

    name: str
    hidden: int
    layers: tuple[FfnShape, ...]

    def __post_init__(self) -> None:
        if self.hidden < 1 or not self.layers:
            raise ValueError(f"model {self.name!r} needs a hidden size and at least one layer")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_units(self) -> int:
        """Units of 16 columns over all layers and experts."""
        return sum(units(cols) for layer in self.layers for _, cols in layer.experts)


def units(num_cols: int) -> int:
    """Units of 16 columns that hold `num_cols`; the columns past the model's own are zero."""
    return -(-num_cols // UNIT_COLUMNS)
