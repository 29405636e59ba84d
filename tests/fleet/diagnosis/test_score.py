"""The labelled corpus: the confusion matrix is printed and kept, the figures hold.

The golden file changes when rules or corpus change: this test, run with DUCKFLEET_WRITE_GOLDEN=1, writes it anew. Rules
are made from cases that are not held out; the held-out third only says how far they carry.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duckfleet.fleet.diagnosis.scoring import Score, score, score_text
from tests.fleet.diagnosis.corpus_cases import corpus_cases

GOLDEN = Path(__file__).parent / "golden" / "score.txt"
LEAST_ACCURACY = 0.95
MOST_APART = 0.05


@pytest.fixture(scope="module")
def scored() -> Score:
    return score(corpus_cases())


def test_confusion_matrix_is_the_one_kept(scored: Score, capsys: pytest.CaptureFixture[str]) -> None:
    text = score_text(scored)
    with capsys.disabled():
        print(f"\n{text}")
    if os.environ.get("DUCKFLEET_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_top_cause_is_right_often_enough(scored: Score) -> None:
    assert scored.accuracy >= LEAST_ACCURACY
    assert scored.part(held_out=False).accuracy >= LEAST_ACCURACY


def test_no_healthy_box_is_held(scored: Score) -> None:
    assert [verdict.case.name for verdict in scored.healthy_held] == []


def test_held_out_third_is_close_to_the_rest(scored: Score) -> None:
    """Cases 1 to 180 are those that the rules were made from: their own held-out third was 8.3 points apart when it was
    first scored, and was given over to the rules. Cases 181 to 356 are by three other hands and were first scored when
    the rules stood (173 of 176 right, no healthy box held); of those, a third of the whole stays held out."""
    apart = scored.part(held_out=False).accuracy - scored.part(held_out=True).accuracy
    assert apart <= MOST_APART


def test_verdict_does_not_depend_on_what_is_for_the_scorer() -> None:
    """Neither the label nor the name of a case is among the texts."""
    for case in corpus_cases():
        assert "case.toml" not in case.texts
        assert all(case.name not in text for text in case.texts.values())
