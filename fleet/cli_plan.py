"""`duckctl plan`: what a published model takes of each duck and of the host, before anything is downloaded."""

from __future__ import annotations

from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_model import Format
from duckfleet.fleet.cli_options import Json


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    model: Annotated[str, typer.Argument(help="A name of the catalogue.")],
    ducks: Annotated[int, typer.Option(min=1, max=64, help="How many ducks.")] = 32,
    ram: Annotated[float, typer.Option(min=0.1, metavar="GIB", help="Memory of each.")] = 32.0,
    ctx: Annotated[int, typer.Option(min=1, help="Tokens of context that the host keeps a cache for.")] = 16384,
    gpu: Annotated[float, typer.Option(min=0, metavar="GIB", help="Memory of the host's GPU; 0: it has none.")] = 32.0,
    format: Format = None,
    json: Json = False,
) -> None:
    """Show bytes by place for a published model: ducks, attention, cache. Ends with 1 when it does not fit."""
    from duckfleet.fleet import compose

    budget = compose.plan_budget(model, ducks, ram_gib=ram, ctx=ctx, gpu_gib=gpu, format=format)
    if json:
        console.print_json(budget)
    else:
        rows = [(what, console.size(num_bytes)) for what, num_bytes in budget.lines]
        title = f"{budget.model} in {budget.format} on {ducks} ducks of {ram:g} GiB"
        console.out.print(console.table(("what", "takes"), rows, title=title, numeric=("takes",)))
        for blocked in budget.blocked:
            console.out.print(console.mark(False) + blocked, soft_wrap=True)
    if budget.blocked:
        raise typer.Exit(1)
