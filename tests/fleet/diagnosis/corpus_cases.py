"""The labelled corpus as records."""

from __future__ import annotations

import tomllib
from pathlib import Path

from duckfleet.fleet.diagnosis.scoring import LabelledCase

CORPUS = Path(__file__).parent / "corpus"


def corpus_cases() -> list[LabelledCase]:
    default = (CORPUS / "fleet_default.json").read_text()
    return [_case(path, default) for path in sorted(CORPUS.iterdir()) if path.is_dir()]


def _case(path: Path, fleet: str) -> LabelledCase:
    label = tomllib.loads((path / "case.toml").read_text())
    texts = {file.name: file.read_text() for file in path.iterdir() if file.name != "case.toml"}
    return LabelledCase(
        path.name,
        {"fleet.json": fleet, **texts},
        tuple(label["expected"]),
        label["healthy"],
        label["outside"],
        label["held_out"],
    )
