"""`duckctl report`: the fleet on one page, kept, delivered, and made every night."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of

if TYPE_CHECKING:
    from duckfleet.fleet.report.schedule import Nightly


def register(app: typer.Typer) -> None:
    group = typer.Typer(invoke_without_command=True, help=report.__doc__)
    group.callback()(report)
    group.command("install")(install)
    group.command("uninstall")(uninstall)
    app.add_typer(group, name="report")


def report(
    context: typer.Context,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the HTML page there too; -: to standard output.")
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write Markdown there too; -: to standard output.")
    ] = None,
    json: Json = False,
    settings: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Who gets it, by mail and webhook. Default: report.toml in the state directory."
        ),
    ] = None,
    no_deliver: Annotated[bool, typer.Option("--no-deliver", help="Send it to nobody.")] = False,
) -> None:
    """Write a report on the fleet: board, findings with work orders, trends, and what changed since the last one.

    One HTML page that stands alone, Markdown and JSON, kept under reports/ in the state directory (latest.html). Rests
    on what the store knows: run duckctl probe before. Exit code by the worst finding: 0 none, 11 note, 12 repair,
    13 degraded, 14 critical; 1 when there is none and the report did not reach somebody.
    """
    if context.invoked_subcommand is not None:
        return
    from duckfleet.fleet.cli import EXIT_FAILED
    from duckfleet.fleet.report.run import make_report

    made = make_report(fleet_of(context), settings_path=settings, to_deliver=not no_deliver)
    for target, text in ((html, made.rendered.html), (markdown, made.rendered.markdown)):
        if target is not None:
            _write(target, text)
    if json:
        sys.stdout.write(made.rendered.json)
    elif Path("-") not in (html, markdown):
        console.out.print(made.rendered.page.verdict, markup=False, soft_wrap=True)
        console.out.print(str(made.path), markup=False, soft_wrap=True)
    for item in made.undelivered:
        console.fail(f"{item.target}: {item.error}; the next report tries again and says so")
    code = made.rendered.page.exit_code or (EXIT_FAILED if made.undelivered else 0)
    if code:
        raise typer.Exit(code)


def install(
    context: typer.Context,
    at: Annotated[str, typer.Option(metavar="HH:MM", help="When, by this host's clock.")] = "06:00",
    using: Annotated[
        str, typer.Option("--with", metavar="systemd|cron", help="Default: systemd where it runs, else cron.")
    ] = "",
    only_print: Annotated[bool, typer.Option("--print", help="Only print the units and the crontab line.")] = False,
) -> None:
    """Make a report every night: writes a systemd timer or a line of the crontab; again: with the new time."""
    from duckfleet.fleet.report.schedule import CRON, SYSTEMD, choose, everywhere
    from duckfleet.inventory.sitefile import load_site

    if using not in ("", SYSTEMD, CRON):
        raise typer.BadParameter(f"{using!r} is neither {SYSTEMD} nor {CRON}", param_hint="--with")
    nightly = _nightly(context, at)
    if only_print:
        for name, text in nightly.files.items():
            console.out.print(f"# {name}\n{text}", markup=False, soft_wrap=True)
        console.out.print(f"# crontab\n{nightly.cron_line}", markup=False, soft_wrap=True)
        return
    load_site(fleet_of(context).site_path)  # one that is of no use is said now, not at night
    chosen = choose(using)
    for other in everywhere():
        if type(other) is not type(chosen):
            other.remove(nightly)
    where = chosen.install(nightly)
    console.out.print(f"a report every night at {at}: {where}", markup=False, soft_wrap=True)


def uninstall(context: typer.Context) -> None:
    """Make no more reports at night: removes what install wrote, wherever it is."""
    from duckfleet.fleet.report.schedule import everywhere

    nightly = _nightly(context, "06:00")
    removed = [place for place in everywhere() if place.remove(nightly)]
    console.out.print("no more reports at night" if removed else "no report was made at night")


def _nightly(context: typer.Context, at: str) -> Nightly:
    from duckfleet.fleet.report.schedule import Nightly, parse_time

    fleet = fleet_of(context)
    hour, minute = parse_time(at)
    words = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(fleet.state_dir)]
    if context.info_name != "uninstall":
        words += ["--site", str(fleet.site_path.absolute())]
    return Nightly((*words, "report"), fleet.state_dir, hour, minute)


def _write(target: Path, text: str) -> None:
    if target == Path("-"):
        sys.stdout.write(text)
    else:
        target.write_text(text, encoding="utf-8")
