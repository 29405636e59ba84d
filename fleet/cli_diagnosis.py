"""`duckctl explain`, `workorder`: what is wrong with ducks and why, and where to walk with what in hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, fleet_of

if TYPE_CHECKING:
    from duckfleet.fleet.diagnosis import Diagnosis
    from duckfleet.fleet.diagnosis.workorder import Patient


def register(app: typer.Typer) -> None:
    app.command("explain")(explain)
    app.command("workorder")(workorder)
    app.command("note")(note)


def explain(
    context: typer.Context,
    duck: Annotated[
        str | None, typer.Argument(metavar="[DUCK]", help="Name, address or MAC.", show_default=False)
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Reason about raw texts in a folder (dmidecode.txt, dmesg.txt, …) instead of what the store knows.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what is wrong with a duck, the evidence, the causes with their weights, and the cheapest next test.

    Rests on the last probe and the event log; a source that could not be read is listed as unknown, and nothing is
    concluded from it. Exit code 3 when there is a finding.
    """
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.diagnosis.explain import explain_text

    diagnosis = _of_folder(texts) if texts is not None else _of_duck(context, duck)
    if json:
        console.print_json(diagnosis_json(diagnosis))
    else:
        console.out.print(explain_text(diagnosis), end="", markup=False, soft_wrap=True)
    if diagnosis.findings:
        raise typer.Exit(EXIT_SOME_DUCKS)


def workorder(context: typer.Context, ducks: Ducks = None, json: Json = False) -> None:
    """List where to walk, by rack position, with the part to bring; then what to do at the switch and from the desk.

    Exit code 3 when there is something to do.
    """
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.diagnosis.workorder import jobs, workorder_text

    patients = _patients(context, ducks)
    todo = jobs(patients)
    if json:
        console.print_json([{**_plain(job), "severity": job.severity.name.lower()} for job in todo])
    else:
        console.out.print(workorder_text(patients), end="", markup=False, soft_wrap=True)
    if todo:
        raise typer.Exit(EXIT_SOME_DUCKS)


def note(
    context: typer.Context,
    duck: Annotated[str, typer.Argument(metavar="DUCK", help="Name, address or MAC.")],
    text: Annotated[
        str, typer.Argument(metavar="TEXT|QUESTION=ANSWER", help='"battery replaced", or what you saw: cable=loose')
    ],
) -> None:
    """Write down what was done to a duck, or what was seen at it; explain and workorder take both as evidence.

    An answer counts until the duck passes a probe. Nothing that was written is ever changed.
    """
    from duckfleet.fleet.evidence.gather import QUESTIONS, TOLD

    fleet = fleet_of(context)
    chosen = fleet.site.select([duck])
    if len(chosen) != 1:
        raise typer.BadParameter(f"{duck!r} names {len(chosen)} ducks; note takes one")
    asked, equals, answer = (part.strip() for part in text.partition("="))
    is_answer = bool(equals) and asked.isidentifier()
    if is_answer and answer not in QUESTIONS.get(asked, ()):
        known = "; ".join(f"{question}={'|'.join(answers)}" for question, answers in QUESTIONS.items())
        raise typer.BadParameter(f"{text!r} is no answer that is understood: {known}")
    evidence = {"asked": asked, "answer": answer} if is_answer else {"text": text}
    fleet.known_store.log(TOLD if is_answer else "note", evidence, chosen[0])
    console.out.print(f"{chosen[0].name}: noted", markup=False)


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain values: times in ISO 8601, severities by name."""
    findings = []
    for finding in diagnosis.findings:
        plain = _plain(finding)
        plain["severity"] = finding.severity.name.lower()
        findings.append(plain)
    return {
        "duck": diagnosis.duck,
        "at": diagnosis.at.isoformat(),
        "top_cause": diagnosis.top_cause,
        "to_be_held": diagnosis.is_to_be_held,
        "findings": findings,
        "unknown": _plain(diagnosis.unknown),
    }


def _plain(record: object) -> Any:
    from duckfleet.inventory.codec import to_plain

    return to_plain(record)


def _of_duck(context: typer.Context, name: str | None) -> Diagnosis:
    if name is None:
        raise typer.BadParameter("name a duck, or a folder of raw texts with --texts")
    (patient,) = _patients(context, [name], one=True)
    return patient.diagnosis


def _of_folder(folder: Path) -> Diagnosis:
    from duckfleet.fleet.diagnosing import diagnose_folder

    return diagnose_folder(folder)


def _patients(context: typer.Context, names: list[str] | None, *, one: bool = False) -> list[Patient]:
    from duckfleet.fleet.diagnosing import diagnose_ducks
    from duckfleet.fleet.diagnosis.workorder import Patient

    fleet = fleet_of(context)
    chosen = fleet.site.select(names or [])
    if one and len(chosen) != 1:
        raise typer.BadParameter(f"{names[0] if names else ''!r} names {len(chosen)} ducks; explain takes one")
    found = diagnose_ducks(fleet.site, fleet.known_store, chosen)
    return [Patient(duck.name, duck.address, duck.rack, found[duck.mac]) for duck in chosen]
