"""`duckctl playbook`: Ansible playbooks on ducks and on this host, live and afterwards; an inventory for your own."""

from __future__ import annotations

import shlex
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TaskID
from rich.text import Text

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, fleet_of
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.whole_file import write_whole

if TYPE_CHECKING:
    from duckfleet.fleet.playbooks.archive import RunRecord
    from duckfleet.fleet.playbooks.catalogue import Playbook
    from duckfleet.fleet.playbooks.events import TaskEvent

MAX_TASK_CHARS = 40  # beside a bar on a terminal of 80 columns
STYLES = {"changed": "yellow", "failed": "bold red", "unreachable": "bold red", "skipped": "dim", "ignored": "dim"}


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Set up, burn in and switch off machines with Ansible playbooks.")
    group.command("list")(list_playbooks)
    group.command("run")(run)
    group.command("log")(log)
    group.command("inventory")(inventory)
    app.add_typer(group, name="playbook")


def list_playbooks(json: Json = False) -> None:
    """List the playbooks, where each runs, and what --set may say."""
    from duckfleet.fleet.playbooks.catalogue import catalogue

    found = list(catalogue().values())
    if json:
        console.print_json(found)
        return
    rows = [(playbook.name, playbook.runs_on, playbook.about) for playbook in found]
    console.out.print(console.table(("name", "runs on", "what it does"), rows))
    settings = [
        (playbook.name, f"{setting.name}={setting.default}", setting.about)
        for playbook in found
        for setting in playbook.settings
    ]
    console.out.print(console.table(("name", "--set", "meaning"), settings))


def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A playbook of `duckctl playbook list`.")],
    ducks: Ducks = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A setting of this playbook; repeat it.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing, say what would be changed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask, though all ducks are meant.")] = False,
    json: Json = False,
) -> None:
    """Run a playbook on ducks, or on this host where it is one for the host; ctrl-C stops it everywhere.

    Ducks are reached by ssh with the fleet's key, and only under the host key that was pinned when they were first
    seen (duckctl probe --ssh). Each run is kept under playbooks/ in the state directory: duckctl playbook log.
    Exit code 3 when some ducks are not well, 1 when the host is not.
    """
    from duckfleet.fleet.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_SOME_DUCKS
    from duckfleet.fleet.playbooks.catalogue import find
    from duckfleet.fleet.playbooks.run import PlaybookRun, choose, run_playbook

    fleet = fleet_of(context)
    playbook = find(name)
    values = playbook.values(settings or [])
    chosen = choose(playbook, fleet.site, ducks or [])
    if playbook.is_drastic and not ducks and not yes and console.err.is_terminal:
        typer.confirm(f"{name}: all {len(chosen)} ducks of {fleet.site.path}?", abort=True, err=True)
    with console.progress_bars() as progress:
        live = _Live(progress, playbook, max(1, len(chosen)), is_quiet=json)
        record = run_playbook(fleet, PlaybookRun(playbook, chosen, values, check), live.hear)
    if json:
        console.print_json(record)
    else:
        _print_record(record)
        console.note("every task of it: duckctl playbook log last")
    if record.outcome == "interrupted":
        raise typer.Exit(EXIT_INTERRUPTED)
    if record.outcome != "ok":
        raise typer.Exit(EXIT_FAILED if playbook.is_for_host else EXIT_SOME_DUCKS)


def log(
    context: typer.Context,
    which: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run by the begin or end of its name, or `last`.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many of the newest runs.")] = 20,
    output: Annotated[
        bool, typer.Option("--output", help="Of one run: what Ansible printed, with every change.")
    ] = False,
    json: Json = False,
) -> None:
    """List the runs that are kept, or show one: what every task did on every machine."""
    from duckfleet.fleet.playbooks import archive
    from duckfleet.fleet.playbooks.run import read_events, runs_dir

    fleet = fleet_of(context)
    folder = runs_dir(fleet)
    if which is None:
        kept = archive.runs(folder)[-limit:]
        if json:
            console.print_json(kept)
            return
        rows = [(console.moment(one.started_at_s), one.outcome, _counted(one), one.run) for one in kept]
        console.out.print(console.table(("when", "outcome", "well", "name"), rows))
        return
    record = archive.find(folder, which)
    if output:
        sys.stdout.write(console.coloured(archive.output(folder, record)))
        return
    events = read_events(fleet, record)
    if json:
        console.print_json({"record": record, "tasks": events})
        return
    for event in events:
        console.out.print(_line(event), soft_wrap=not console.out.is_terminal)
    _print_record(record)


def inventory(
    context: typer.Context,
    _list: Annotated[bool, typer.Option("--list", help="The whole inventory; so it is without an option too.")] = False,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="The variables of one machine.")] = "",
    script: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a program that Ansible takes with -i.")
    ] = None,
) -> None:
    """Print the site as an Ansible dynamic inventory: groups ducks, domain_*, fleet_host.

    For playbooks of your own: duckctl playbook inventory --script fleet.sh, then ansible-playbook -i fleet.sh …
    """
    from duckfleet.fleet.playbooks.run import whole_inventory

    fleet = fleet_of(context)
    if script is not None:
        command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(fleet.state_dir)]
        command += ["--site", str(fleet.site_path.absolute()), "playbook", "inventory"]
        try:
            write_whole(script, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
            script.chmod(0o755)
        except OSError as error:
            raise OperatorError(f"{script} cannot be written: {error.strerror}") from error
        console.note(f"ansible-inventory -i {script} --graph")
        return
    made = whole_inventory(fleet)
    console.print_json(made.variables_of(host) if host else made.dynamic())


class _Live:
    """A bar with the task under way, and a line for each that changed something or failed."""

    def __init__(self, progress: Progress, playbook: Playbook, num_machines: int, *, is_quiet: bool) -> None:
        self._progress = progress
        self._is_quiet = is_quiet
        self._bar: TaskID = progress.add_task(playbook.name, total=num_machines, unit="machines")
        self._task = ""

    def hear(self, event: TaskEvent) -> None:
        if event.task != self._task:
            self._task = event.task
            self._progress.reset(self._bar, description=textwrap.shorten(event.task, MAX_TASK_CHARS, placeholder="…"))
        if event.status == "started":
            return
        self._progress.advance(self._bar)
        if not self._is_quiet and event.status in ("changed", "failed", "unreachable"):
            there = self._progress.console
            there.print(_line(event), soft_wrap=not there.is_terminal)


def _line(event: TaskEvent) -> Text:
    status = Text(event.status, STYLES.get(event.status, "green"))
    words = f"  {event.detail or event.note}" if event.detail or event.note else ""
    return Text(f"{event.host}  {event.task}  ") + status + Text(words)


def _print_record(record: RunRecord) -> None:
    rows: list[tuple[Any, ...]] = [
        (
            one.machine,
            Text(one.outcome, "green" if one.is_well else "bold red"),
            str(one.num_ok),
            str(one.num_changed),
            str(one.num_skipped),
            one.detail,
        )
        for one in record.results
    ]
    columns = ("duck", "result", "ok", "changed", "skipped", "what")
    console.out.print(console.table(columns, rows, numeric=("ok", "changed", "skipped")))
    took = console.age(record.finished_at_s - record.started_at_s)
    console.out.print(f"{record.playbook}: {_counted(record)} well, {took}")


def _counted(record: RunRecord) -> str:
    return f"{sum(one.is_well for one in record.results)} of {len(record.results)}"
