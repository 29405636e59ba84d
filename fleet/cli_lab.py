"""`duckctl lab`: a fleet without the hardware."""

from __future__ import annotations

import secrets
from typing import Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of

lab_app = typer.Typer(
    no_args_is_help=True, help="A fleet without the hardware: ducks as processes, or as virtual machines (--vm)."
)


def register(app: typer.Typer) -> None:
    app.add_typer(lab_app, name="lab")


@lab_app.command("up")
def up(
    context: typer.Context,
    ducks: Annotated[int, typer.Option(min=1, help="How many ducks.")] = 4,
    domains: Annotated[
        int | None, typer.Option(min=1, help="In how many broadcast domains (eight ducks each).")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each duck.")] = 1,
    spin_us: Annotated[int, typer.Option(min=0, help="How long idle threads spin before they block.")] = 0,
    base_port: Annotated[
        int | None, typer.Option(min=1024, max=65000, help="First of 16 ports. Default: the first free block.")
    ] = None,
    vm: Annotated[bool, typer.Option("--vm", help="Virtual machines that really PXE-boot (root).")] = False,
    firmware: Annotated[str, typer.Option(help="With --vm: mixed (in turn), bios or uefi.")] = "mixed",
    memory_mib: Annotated[int, typer.Option(min=512, help="With --vm: memory of each duck.")] = 1024,
) -> None:
    """Start a lab: every duck is off until its magic packet comes.

    Ducks live at 127.21.[1-4].[101-108], each a duckd behind a power relay that listens for magic packets. Then:
    duckctl wake --wait; duckctl probe; duckctl place MODEL; duckctl serve. `duckctl lab down` ends it all.
    """
    fleet = fleet_of(context)
    if vm:
        from duckfleet.fleet import cli_vm

        cli_vm.lab_up(fleet, ducks, num_domains=domains, firmware=firmware, memory_mib=memory_mib)
        return
    from duckfleet.fleet.lab import processes
    from duckfleet.fleet.lab.plan import plan_lab
    from duckfleet.fleet.trust import make_keys
    from duckfleet.runtime.control import duckd_path

    fleet.make_state_dir()
    keys_dir = None if fleet.no_auth else fleet.keys_dir
    if keys_dir is not None:
        make_keys(keys_dir)
    plan = plan_lab(processes.new_lab_id(), ducks, num_domains=domains, base_port=base_port or random_base_port())
    if base_port is None:
        plan = processes.find_free_ports(plan)
    options = processes.DaemonOptions(
        duckd_path(),
        threads,
        spin_us,
        fleet_key=keys_dir / "fleet.pub" if keys_dir else None,
        enrolment=keys_dir / "enrolment.secret" if keys_dir else None,
    )
    site = processes.lab_up(fleet.lab_dir, plan, options)
    console.out.print(f"lab of {ducks} ducks is up, all off; site file {site}", markup=False, soft_wrap=True)


@lab_app.command("down")
def down(context: typer.Context) -> None:
    """End every process of the lab, also what a crash left, and remove its folder. Weights and keys stay."""
    from duckfleet.fleet.announcement import running_server
    from duckfleet.fleet.lab import processes
    from duckfleet.fleet.vm.lab import is_vm_lab

    fleet = fleet_of(context)
    if (server := running_server(fleet.state_dir)) is not None:
        console.note(
            f"{server.model} is still served at {server.url}: it loses its ducks; `kill -INT {server.pid}` ends it"
        )
    if is_vm_lab(fleet.lab_dir):
        from duckfleet.fleet import cli_vm

        cli_vm.lab_down(fleet)
        return
    if not fleet.lab_dir.exists():
        console.out.print("no lab is up")
        return
    processes.lab_down(fleet.lab_dir)
    console.out.print("lab is down")


@lab_app.command("status")
def status(context: typer.Context, json: Json = False) -> None:
    """Show the lab's processes."""
    from duckfleet.fleet.lab import processes

    fleet = fleet_of(context)
    found = processes.lab_status(fleet.lab_dir)
    if json:
        console.print_json(found)
    elif found is None:
        console.out.print("no lab is up")
    else:
        relay = f"pid {found.relay_pid}" if found.relay_pid else "not running: the lab crashed; `duckctl lab down`"
        rows = [
            (duck.name, duck.address, duck.mac, f"on (pid {duck.pid})" if duck.pid else "off") for duck in found.ducks
        ]
        console.out.print(f"power relay: {relay}")
        console.out.print(console.table(("duck", "address", "mac", "power"), rows))


def random_base_port() -> int:
    """Where the search for free ports begins: below the ephemeral ones, and seldom where another lab begins too."""
    return 20_000 + 16 * secrets.randbelow(700)
