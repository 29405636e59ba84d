"""`duckctl wake`, `off`, `reboot`: power, from outside and from inside."""

from __future__ import annotations

from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, Timeout, Wait, fleet_of
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import OperatorError


def register(app: typer.Typer) -> None:
    app.command("wake")(wake)
    app.command("off")(off)
    app.command("reboot")(reboot)


def wake(
    context: typer.Context,
    ducks: Ducks = None,
    wait: Wait = False,
    timeout: Timeout = None,
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
    require_relay(fleet)
    limits = dict(lifecycle.TIMEOUT_S)
    if timeout is not None:
        limits = {state: None if limit is None else timeout for state, limit in limits.items()}
    with console.progress_bars() as progress:
        task = progress.add_task(f"waking {len(chosen)} ducks", total=len(chosen), unit="ducks")

        def report(result: WakeResult) -> None:
            progress.advance(task)
            if not json:
                state = console.state_text(result.state)
                line = console.mark(result.ok) + f"{result.duck.name}  " + state + f"  {result.detail}"
                progress.console.print(line, soft_wrap=True)

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


By = Annotated[
    str,
    typer.Option(
        metavar="auto|control|ssh|power",
        help="auto: ssh, then the duck's power source; the control plane for ducks that are processes of this host.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask, though all ducks are meant.")]


def off(context: typer.Context, ducks: Ducks = None, by: By = "auto", yes: Yes = False, json: Json = False) -> None:
    """Switch ducks off. Nothing of this can ever run on this host: see docs/operations.md.

    Exit code 3 when some could not be switched off.
    """
    _switch(context, ducks, "off", by, yes=yes, json=json)


def reboot(context: typer.Context, ducks: Ducks = None, by: By = "auto", yes: Yes = False, json: Json = False) -> None:
    """Restart ducks; a hung one by its power source, when it has one that can. `wake --wait` follows them."""
    _switch(context, ducks, "reboot", by, yes=yes, json=json)


def _switch(context: typer.Context, ducks: list[str] | None, action: str, by: str, *, yes: bool, json: bool) -> None:
    from duckfleet.fleet.cli import EXIT_SOME_DUCKS
    from duckfleet.fleet.switching import Switch

    if by not in ("auto", "control", "ssh", "power"):
        raise typer.BadParameter(f"--by {by!r}: auto, control, ssh or power")
    fleet = fleet_of(context)
    chosen = fleet.site.select(ducks or [])
    if not ducks and not yes and console.err.is_terminal:
        typer.confirm(f"{action}: all {len(chosen)} ducks of {fleet.site.path}?", abort=True, err=True)
    switch = Switch(fleet.site, fleet.known_store, fleet.keys, fleet.keys_dir, ask=ask_person)
    results = switch.switch(chosen, action, by=by)
    if json:
        console.print_json([{"duck": result.duck.name, "ok": result.ok, "detail": result.detail} for result in results])
    else:
        for result in results:
            console.out.print(console.mark(result.ok) + f"{result.duck.name}  {result.detail}", soft_wrap=True)
    if not all(result.ok for result in results):
        raise typer.Exit(EXIT_SOME_DUCKS)


def require_relay(fleet: FleetContext) -> None:
    """In a lab of processes nothing wakes when its power relay is gone. Raises `OperatorError` that says so."""
    from duckfleet.fleet.lab.processes import lab_status

    if not fleet.site_path.absolute().is_relative_to(fleet.lab_dir):
        return
    lab = lab_status(fleet.lab_dir)
    if lab is not None and lab.kind == "processes" and lab.relay_pid is None:
        raise OperatorError(
            "the lab's power relay is not running, it crashed or was killed: `duckctl lab down`, `lab up`"
        )


def ask_person(request: str) -> bool:
    """On a terminal, ask; elsewhere nobody is there."""
    return console.err.is_terminal and typer.confirm(f"Please {request}. Done?", default=True, err=True)
