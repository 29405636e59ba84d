"""`duckctl demo`: the whole chain, on this machine, in one command."""

from __future__ import annotations

from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_QUESTION = "Why do ducks stay dry in the rain? Answer in two sentences."


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Which model.")] = DEFAULT_MODEL,
    ducks: Annotated[int, typer.Option(min=1, max=32, help="How many ducks.")] = 4,
    format: Annotated[str, typer.Option(help="Number format of the weights in the ducks.")] = "e4m3",
    question: Annotated[str, typer.Option(help="What to ask.")] = DEFAULT_QUESTION,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 64,
    json: Json = False,
) -> None:
    """Show the whole chain without any hardware: wake, probe, place, serve, ask, and take everything down again.

    Ducks are processes on this machine. Only the model stays (in the folder demo of the state directory), so the second
    run is quick. Ends with the exit code of the step that failed, 130 when interrupted.
    """
    from duckfleet.fleet.demo import DemoRequest, StepFailed, run_demo, show

    state_dir = fleet_of(context).state_dir / "demo"
    try:
        request = DemoRequest(model, ducks, question, max_tokens, format)
        if json:
            console.print_json(run_demo(state_dir, request, console.err))
        else:
            run_demo(state_dir, request, console.out, show)
    except StepFailed as error:
        console.fail(str(error))
        raise typer.Exit(error.code) from error
