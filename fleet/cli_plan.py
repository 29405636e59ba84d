"""`duckctl plan`: what a published model takes of each duck and of the host, before anything is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_model import Format, known_format
from duckfleet.fleet.cli_options import Json, fleet_of
from duckfleet.inventory.errors import OperatorError

if TYPE_CHECKING:
    from duckfleet.fleet.compose import PlannedBytes
    from duckfleet.fleet.context import FleetContext
    from duckfleet.inventory.site import Site

DEFAULT_DUCKS = 32


def register(app: typer.Typer) -> None:
    app.command("plan")(plan)


def plan(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="A name of the catalogue.")],
    ducks: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="How many equal ducks. Default: those of the site file, and 32 without one."),
    ] = None,
    ram: Annotated[
        float, typer.Option(min=0.1, metavar="GIB", help="Memory of each, where neither probe nor site file tells.")
    ] = 32.0,
    ctx: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of context that the host keeps a cache for. Default: 16384, or the model's most.",
        ),
    ] = None,
    gpu: Annotated[float, typer.Option(min=0, metavar="GIB", help="Memory of the host's GPU; 0: it has none.")] = 32.0,
    format: Format = None,
    parts: Annotated[
        int | None, typer.Option(min=1, max=8, help="Parts of a slice. Default: 4, or 1 without replicas.")
    ] = None,
    replicas: Annotated[
        float, typer.Option(min=0, max=1, help="How much of a second copy other ducks hold, as far as it fits.")
    ] = 1.0,
    json: Json = False,
) -> None:
    """Show bytes by place for a published model: each duck, how much of it others could take over at once, the host.

    Format, parts and replicas are what `duckctl place` would take. Ends with 1 when the model does not fit.
    """
    from duckfleet.fleet import compose
    from duckfleet.fleet.placement import PlacementRequest

    fleet = fleet_of(context)
    request = PlacementRequest(model, known_format(format), parts, replicas)
    budget = compose.plan_budget(
        fleet.models_dir,
        model,
        ram_of_ducks(fleet, ducks, int(ram * 2**30)),
        ctx=ctx,
        gpu_gib=gpu,
        format=request.format,
        parts=request.parts_per_slice,
        replicas=replicas,
    )
    if json:
        console.print_json(budget)
    else:
        show(budget)
    if budget.blocked:
        raise typer.Exit(1)


def ram_of_ducks(fleet: FleetContext, num_ducks: int | None, default_bytes: int) -> dict[str, int]:
    """Memory by address: what the newest probe saw, else what the site file expects, else `default_bytes`."""
    if num_ducks is None and (site := _site(fleet)) is not None and site.ducks:
        from duckfleet.fleet.musters import gather

        evidence = gather(site, fleet.known_store)
        ram = {}
        for duck in site.ducks:
            facts = evidence[duck.mac].facts
            ram[duck.address] = (facts.ram_bytes if facts else 0) or duck.expect.ram_bytes or default_bytes
        return ram
    return {f"duck {rank}": default_bytes for rank in range(num_ducks or DEFAULT_DUCKS)}


def _site(fleet: FleetContext) -> Site | None:
    """None where there is no site file; one that is wrong is complained about."""
    try:
        path = fleet.site_path
    except OperatorError:
        return None
    return fleet.site if path.exists() or fleet.site_option else None


def show(budget: PlannedBytes) -> None:
    rows = [
        (
            duck.duck,
            console.size(duck.ram_bytes),
            console.size(duck.slice_bytes),
            console.size(duck.replica_bytes),
            console.size(duck.headroom_bytes) if duck.headroom_bytes >= 0 else "none",
            f"{duck.covered:.0%}",
        )
        for duck in budget.ducks
    ]
    columns = ("duck", "memory", "its slice", "replicas", "headroom", "covered if lost")
    title = f"{budget.model} in {budget.format} on {len(rows)} ducks, {budget.parts} parts a slice"
    alike = len({row[1:] for row in rows}) == 1
    shown = [(f"each of {len(rows)}", *rows[0][1:])] if alike else rows
    console.out.print(console.table(columns, shown, title=title, numeric=columns[1:]))
    lines = [(what, console.size(num_bytes)) for what, num_bytes in budget.lines]
    console.out.print(console.table(("what", "takes"), lines, numeric=("takes",)))
    for blocked in budget.blocked:
        console.out.print(console.mark(False) + blocked, soft_wrap=True)
