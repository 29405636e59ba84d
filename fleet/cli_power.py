"""`duckctl wake`, `off`, `reboot`: power, from outside and from inside."""

from __future__ import annotations

from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, fleet_of


def register(app: typer.Typer) -> None:
    app.command("wake")(wake)


def wake(
    context: typer.Context,
    ducks: Ducks = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow each duck until it is up or its state times out.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, metavar="S", help="With --wait: give every state at most this long.")
    ] = None,
    json: Json = False,
) -> None:
    """Switch ducks on: magic packets out of the right interface, or whatever the site file says.

    Ducks start one after the other ([start] stagger_s) because of their inrush. A duck that answers already gets no
    packet. Exit code 3 when some did not come up.
    """
    from duckfleet.fleet import lifecycle
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.wake import Waker, WakeResult

    fleet = fleet_of(context)
    chosen = fleet.site.select(ducks or [])
    limits = dict(lifecycle.TIMEOUT_S)
    if timeout is not None:
        limits = {state: limit if limit is None else min(limit, timeout) for state, limit in limits.items()}
    with console.progress_bars() as progress:
        task = progress.add_task(f"waking {len(chosen)} ducks", total=len(chosen), unit="ducks")

        def report(result: WakeResult) -> None:
            progress.advance(task)
            if not json:
                mark = "[green]●[/]" if result.ok else "[red]●[/]"
                progress.console.print(f"{mark} {result.duck.name}  ", console.state_text(result.state), "  ", end="")
                progress.console.print(result.detail, markup=False, soft_wrap=True)

        waker = Waker(fleet.site, fleet.known_store, fleet.keys, ask=ask_person, report=report, timeout_s=limits)
        results = waker.wake(chosen, wait=wait)
    up = sum(result.ok for result in results)
    if json:
        console.print_json(
            [
                {
                    "duck": result.duck.name,
                    "address": result.duck.address,
                    "state": result.state,
                    "ok": result.ok,
                    "detail": result.detail,
                    "took_s": round(result.took_s, 3),
                }
                for result in results
            ]
        )
    else:
        console.out.print(f"{up} of {len(results)} ducks {'are up' if wait else 'told to start'}")
    if up < len(results):
        raise typer.Exit(EXIT_SOME_DUCKS)


def ask_person(request: str) -> bool:
    """On a terminal, ask; elsewhere nobody is there."""
    return console.err.is_terminal and typer.confirm(f"Please {request}. Done?", default=True, err=True)
