"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from duckfleet.fleet.context import FleetContext

Ducks = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[DUCKS]...",
        help="Names, addresses, MACs, node sets like 10.21.1.[101-104], or @domain. Default: all ducks.",
        show_default=False,
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Follow each duck until it is up or its state times out.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.1, metavar="S", help="With --wait: how long each state may last, instead of its own limit."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def fleet_of(context: typer.Context) -> FleetContext:
    """The run's `FleetContext`, made by the options before the command."""
    fleet = context.obj
    assert isinstance(fleet, FleetContext)
    return fleet
