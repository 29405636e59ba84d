"""How good the diagnosis is: verdicts on labelled cases, accuracy by part, the confusion matrix as text. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.infer import diagnose
from duckfleet.fleet.diagnosis.look import look_from_texts

COLUMN_NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class LabelledCase:
    """Raw texts by file name, and what was really the matter."""

    name: str
    texts: Mapping[str, str]
    expected: tuple[str, ...]  # acceptable top causes
    healthy: bool
    outside: str
    held_out: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    case: LabelledCase
    found: str
    is_held: bool  # out of service

    @property
    def is_right(self) -> bool:
        return self.found in self.case.expected

    @property
    def row(self) -> str:
        """The line of the matrix: the label that was met, else the first."""
        return self.found if self.is_right else self.case.expected[0]


@dataclass(frozen=True)
class Score:
    verdicts: tuple[Verdict, ...]

    def part(self, held_out: bool) -> Score:
        return Score(tuple(verdict for verdict in self.verdicts if verdict.case.held_out == held_out))

    @property
    def num_right(self) -> int:
        return sum(verdict.is_right for verdict in self.verdicts)

    @property
    def accuracy(self) -> float:
        return self.num_right / len(self.verdicts) if self.verdicts else 0.0

    @property
    def wrong(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if not verdict.is_right)

    @property
    def healthy_held(self) -> tuple[Verdict, ...]:
        """Healthy boxes that would be kept out of service: there must be none."""
        return tuple(verdict for verdict in self.verdicts if verdict.case.healthy and verdict.is_held)


def score(cases: Sequence[LabelledCase]) -> Score:
    """The diagnosis sees the texts only."""
    verdicts = []
    for case in cases:
        diagnosis = diagnose(look_from_texts(case.texts))
        verdicts.append(Verdict(case, diagnosis.top_cause, diagnosis.is_to_be_held))
    return Score(tuple(verdicts))


def score_text(scored: Score) -> str:
    """Figures, then the confusion matrix: a line a true cause, a column a found one."""
    lines = []
    for title, part in (
        ("cases that rules may be made from", scored.part(held_out=False)),
        ("held-out third", scored.part(held_out=True)),
    ):
        lines.append(f"top cause right, {title}: {part.num_right} of {len(part.verdicts)} ({part.accuracy:.1%})")
    healthy = sum(verdict.case.healthy for verdict in scored.verdicts)
    lines += [f"healthy boxes held: {len(scored.healthy_held)} of {healthy}", ""]
    for level in sorted({verdict.case.outside for verdict in scored.verdicts}):
        part = Score(tuple(verdict for verdict in scored.verdicts if verdict.case.outside == level))
        lines.append(f"  evidence from outside {level}: {part.num_right} of {len(part.verdicts)}")
    lines += ["", *matrix_lines(scored)]
    named = [verdict for verdict in scored.wrong if not verdict.case.held_out]
    for verdict in named:
        lines.append(f"wrong: {verdict.case.name}: {verdict.found}, expected {' or '.join(verdict.case.expected)}")
    if len(named) < len(scored.wrong):
        lines += ["", "Held-out cases are not named: rules are not to be made from them."]
    return "\n".join(lines) + "\n"


def matrix_lines(scored: Score) -> list[str]:
    counts = Counter((verdict.row, verdict.found) for verdict in scored.verdicts)
    codes = sorted({code for pair in counts for code in pair})
    width = max(map(len, codes), default=0)
    lines = [" " * (width + 5) + "".join(f"{name:>4}" for name in COLUMN_NAMES[: len(codes)])]
    for name, row in zip(COLUMN_NAMES, codes, strict=False):
        cells = "".join(f"{counts[row, column] or '.':>4}" for column in codes)
        lines.append(f"  {name}  {row:<{width}}{cells}")
    return lines
