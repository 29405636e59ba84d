"""The engine: symptoms and clues of the tables to ranked findings. Pure; knows nothing of what they mean."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Argument, Cause, Diagnosis, Finding, Unknown
from duckfleet.fleet.diagnosis.look import Look
from duckfleet.fleet.diagnosis.next_tests import next_test
from duckfleet.fleet.diagnosis.tables.all import SYMPTOMS
from duckfleet.fleet.diagnosis.tables.rows import Symptom

LEAST_WEIGHT = 0.01  # causes below are not worth a line


def diagnose(look: Look) -> Diagnosis:
    """Everything that is wrong with one duck, worst first; ties in the order of the codes."""
    case = Case(look)
    shown = {symptom.code: evidence for symptom in SYMPTOMS if (evidence := symptom.see(case))}
    findings = [
        _finding(symptom, case)
        for symptom in SYMPTOMS
        if symptom.code in shown and not any(larger in shown for larger in symptom.part_of)
    ]
    findings.sort(
        key=lambda finding: (-finding.severity, finding.top.code == INSUFFICIENT, -finding.top.weight, finding.code)
    )
    unknown = tuple(
        Unknown(observed.source, observed.unknown)
        for observed in look.observations()
        if observed.value is None and observed.was_tried
    )
    return Diagnosis(look.duck.name, look.now, tuple(findings), unknown)


def _finding(symptom: Symptom, case: Case) -> Finding:
    weights = dict(symptom.priors)
    arguments = []
    for clue in symptom.clues:
        evidence = clue.see(case)
        if evidence is None:
            continue
        factors = {code: clue.factors.get(code, clue.rest) for code in weights}
        for code, factor in factors.items():
            weights[code] *= factor
        arguments.append(Argument(evidence, tuple((code, factor) for code, factor in factors.items() if factor != 1.0)))
    causes = _ranked(weights)
    return Finding(
        symptom.code,
        symptom.title,
        symptom.severity,
        symptom.see(case),
        tuple(arguments),
        causes,
        next_test(causes, case),
    )


def _ranked(weights: dict[str, float]) -> tuple[Cause, ...]:
    total = sum(weights.values())
    causes = [Cause(code, round(weight / total, 4)) for code, weight in weights.items()]
    causes.sort(key=lambda cause: (-cause.weight, cause.code))
    return tuple(cause for i, cause in enumerate(causes) if i == 0 or cause.weight >= LEAST_WEIGHT)
