"""`duckctl init`, `keys`, `discover`, `doctor`: what comes before the first wake."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of
from duckfleet.inventory.errors import OperatorError

keys_app = typer.Typer(no_args_is_help=True, help="The fleet's keys: show them, rotate them.")


def register(app: typer.Typer) -> None:
    app.command("init")(init)
    app.command("discover")(discover)
    app.command("doctor")(doctor)
    app.add_typer(keys_app, name="keys")


def init(
    context: typer.Context,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="Where to write the site file.")] = Path(
        "duckfleet.toml"
    ),
    name: Annotated[str, typer.Option(help="What the fleet is called.")] = "fleet",
    domain: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,IFACE,HOST,NODES",
            help="A broadcast domain, for instance d1,enp1s0f0,10.21.1.1,10.21.1.[101-108]. Again for each one.",
        ),
    ] = None,
    duck: Annotated[
        list[str] | None,
        typer.Option(metavar="MAC,ADDRESS[,NAME[,RACK]]", help="A duck. Again for each; `discover` finds them too."),
    ] = None,
    ram_gib: Annotated[float | None, typer.Option(min=0.25, help="RAM that every duck has.")] = None,
    link_mbps: Annotated[int | None, typer.Option(min=10, help="Link speed that every duck has.")] = None,
    cpu: Annotated[str | None, typer.Option(help="Part of the CPU's name that every duck has.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a site file that is there.")] = False,
) -> None:
    """Write a site file and make the fleet's keys. On a terminal it asks for what no flag says.

    Keys that are there are kept (`duckctl keys rotate` replaces them). For instance, one domain and one duck:

    duckctl init --domain d1,enp1s0f0,10.21.1.1,10.21.1.[101-108] --duck 02:00:00:00:01:01,10.21.1.101,ann
    """
    from duckfleet.fleet import initial, trust

    fleet = fleet_of(context)
    if not force:
        initial.require_new(file)
    fleet.make_state_dir()
    made = trust.make_keys(fleet.keys_dir)
    keys = fleet.keys if not fleet.no_auth else None
    if keys is not None:
        word = "made" if made else "are there already"
        console.out.print(
            f"keys {word} in {fleet.keys_dir}, fingerprint {trust.fingerprint(keys.public)}", soft_wrap=True
        )
    domains = [initial.parse_domain(text) for text in domain or []]
    ducks = [initial.parse_duck(text) for text in duck or []]
    if not domains and console.err.is_terminal:
        domains = initial.ask_domains(lambda complaint: console.err.print(complaint, style="yellow", markup=False))
    if not domains:
        raise OperatorError(
            "a site needs a domain, where its ducks are: --domain NAME,IFACE,HOST,NODES, for instance "
            "d1,enp1s0f0,10.21.1.1,10.21.1.[101-108]; nothing was written but the keys"
        )
    text = initial.site_file(name, domains, ducks, ram_gib=ram_gib, link_mbps=link_mbps, cpu=cpu)
    initial.write_site(file, text, force=force)
    console.out.print(f"site file {file}: {len(domains)} domains, {len(ducks)} ducks", markup=False, soft_wrap=True)
    if not ducks:
        console.note("next: `duckctl discover` listens for boxes that are switched on, and proposes them as ducks")


def discover(
    context: typer.Context,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to listen.")] = 60.0,
    add: Annotated[bool, typer.Option("--add", help="Append what was found to the site file.")] = False,
    json: Json = False,
) -> None:
    """Listen for DHCP requests and ARP on every domain, and propose unknown boxes as ducks (root).

    Switch the boxes on while it listens; ctrl-C ends it early. Without --add it only prints what it would append.
    """
    from duckfleet.fleet import discovery
    from duckfleet.inventory.sitefile import parse_site
    from duckfleet.inventory.sitewriter import duck_block
    from duckfleet.inventory.whole_file import write_whole

    fleet = fleet_of(context)
    site = fleet.site
    if not site.domains:
        raise OperatorError(f"{site.path} has no domains, so there is nowhere to listen: write a [[domains]]")
    with console.progress_bars() as progress:
        interfaces = ", ".join(domain.interface for domain in site.domains)
        task = progress.add_task(f"listening on {interfaces}", total=None, unit="boxes")
        seen: set[str] = set()

        def heard(sighting: discovery.Sighting) -> None:
            if sighting.mac not in seen:
                seen.add(sighting.mac)
                known = site.find(sighting.mac)
                what = f"duck {known.name}" if known else "unknown"
                progress.console.print(f"heard {sighting.mac} in {sighting.domain} by {sighting.source}: {what}")
            progress.update(task, completed=len(seen))

        def ready() -> None:
            progress.console.print(f"listening for {seconds:g} s, or until ctrl-C", style="dim")

        sightings = discovery.listen(site, seconds, heard, ready)
    proposals = discovery.propose(site, sightings)
    text = "\n".join(
        duck_block(duck, f"seen in domain {seen.domain} by {seen.source} at {console.moment(seen.at_s)}")
        for duck, seen in proposals
    )
    if json:
        console.print_json({"heard": discovery.merge(sightings), "proposed": [duck for duck, _seen in proposals]})
    else:
        console.out.print(f"{len(seen)} boxes heard, {len(proposals)} of them unknown")
        console.out.print(text, markup=False, soft_wrap=True)
    if add and proposals:
        whole = site.path.read_text(encoding="utf-8").rstrip("\n") + "\n\n" + text
        parse_site(whole, site.path)
        try:
            write_whole(site.path, whole)
        except OSError as error:
            raise OperatorError(f"{site.path} cannot be written: {error.strerror}; nothing was appended") from error
        console.note(f"appended to {site.path}")


@keys_app.command("show")
def show_keys(context: typer.Context, json: Json = False) -> None:
    """Show where the keys lie, with which permissions, and their fingerprint."""
    from duckfleet.fleet import trust

    fleet = fleet_of(context)
    keys = fleet.keys
    if keys is None:
        raise OperatorError("--no-auth: there are no keys in use")
    files = trust.key_files(fleet.keys_dir)
    if json:
        described = [{"path": file.path, "mode": f"{file.mode:04o}", "secret": file.is_secret} for file in files]
        console.print_json({"fingerprint": trust.fingerprint(keys.public), "files": described})
        return
    rows = [(str(file.path), f"{file.mode:04o}", "secret" if file.is_secret else "public") for file in files]
    console.out.print(console.table(("file", "mode", "kind"), rows))
    console.out.print(f"fingerprint {trust.fingerprint(keys.public)}")


@keys_app.command("rotate")
def rotate_keys(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Replace the fleet's keys: end every daemon that still knows the old ones, make new ones, keep the old aside.

    Afterwards ducks need a new boot image (or the lab's relay wakes them with the new keys), and `place` signs anew.
    """
    from duckfleet.fleet import lifecycle, trust
    from duckfleet.fleet.reach import connect, on_all
    from duckfleet.inventory.errors import MachineError
    from duckfleet.inventory.site import Duck

    fleet = fleet_of(context)
    site, old = fleet.site, fleet.keys
    if not yes:
        typer.confirm(f"End the daemons of {len(site.ducks)} ducks and replace the keys?", abort=True, err=True)

    def end(duck: Duck) -> None:
        with connect(site, duck, old, 2.0) as client:
            client.shutdown()

    silent = []
    for duck, answer in on_all(site.ducks, end):
        if isinstance(answer, MachineError):
            silent.append(duck.name)
        else:
            fleet.known_store.transition(duck, "power_cut", {"by": "keys rotate"}, lifecycle.next_state)
    aside = trust.rotate_keys(fleet.keys_dir)
    fleet.store.log("keys_rotated", {"old": str(aside), "not_reached": silent})
    console.out.print(f"new keys in {fleet.keys_dir}, the old ones in {aside}", markup=False, soft_wrap=True)
    if silent:
        console.note(f"did not answer, so nothing was ended there: {', '.join(silent)}")
    console.note("next: build and boot a new image (`duckctl image build`), then `duckctl wake`, `probe`, `place`")


def doctor(
    context: typer.Context,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port that `serve` will use.")] = 8021,
    json: Json = False,
) -> None:
    """Look at this host: versions, CPU, clock, keys, ports, network interfaces, and say what to fix.

    Exit code 1 when something is bad.
    """
    from duckfleet.fleet.cli import EXIT_FAILED
    from duckfleet.fleet.doctor import BAD, examine

    findings = list(examine(fleet_of(context), port))
    if json:
        console.print_json(findings)
    else:
        style = {"good": "green", "warning": "yellow", "bad": "red", "unknown": "dim"}
        for finding in findings:
            line = Text.assemble(("● ", style[finding.verdict]), (finding.subject, "bold"), f"  {finding.detail}")
            console.out.print(line, soft_wrap=True)
            if finding.fix:
                console.out.print(f"    → {finding.fix}", markup=False, soft_wrap=True)
    if any(finding.verdict == BAD for finding in findings):
        raise typer.Exit(EXIT_FAILED)
