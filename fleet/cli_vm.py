"""`duckctl lab up --vm`, `lab fault`, `lab power`, `lab exec`: ducks as virtual machines."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Json, fleet_of
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import OperatorError

if TYPE_CHECKING:
    from duckfleet.fleet.vm.network import Stay

COMMANDS_OUTSIDE = frozenset(
    ("init", "keys", "lab", "image", "pull", "model", "models", "demo", "doctor", "report", "chat")
)
"""Commands that do not speak to ducks, or that need this machine's own network."""


def register(app: typer.Typer) -> None:
    from duckfleet.fleet.cli_lab import lab_app

    lab_app.command("fault")(fault)
    lab_app.command("power")(power)
    lab_app.command("exec", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(execute)


def lab_up(
    fleet: FleetContext, num_ducks: int, *, num_domains: int | None = None, firmware: str = "mixed", memory_mib: int = 0
) -> None:
    """Start a lab; builds the duck image first if there is none that holds this duckd."""
    from duckfleet.fleet.lab.processes import new_lab_id
    from duckfleet.fleet.vm import lab, plan

    lab.check_programs()
    module_mib = memory_mib // plan.NUM_SLOTS or plan.DEFAULT_MODULE_MIB
    wanted = plan.plan_lab(new_lab_id(), num_ducks, num_domains=num_domains, firmware=firmware, module_mib=module_mib)
    _ensure_image(fleet)
    options = ["--state", str(fleet.state_dir), "--site", str(fleet.lab_dir / "duckfleet.toml")]
    serve = [sys.executable, "-m", "duckfleet.fleet.cli", *options, "pxe", "serve", "--quiet"]
    site = lab.lab_up(fleet.lab_dir, wanted, serve)
    console.out.print(
        f"lab of {num_ducks} virtual ducks is up, all off, boot service running; site file {site}",
        markup=False,
        soft_wrap=True,
    )


def lab_down(fleet: FleetContext) -> None:
    import shutil

    from duckfleet.fleet.cli_pxe import run_dir
    from duckfleet.fleet.vm import lab

    ended = lab.lab_down(fleet.lab_dir)
    shutil.rmtree(run_dir(fleet), ignore_errors=True)
    console.out.print(f"lab is down, {ended} processes ended")


def _ensure_image(fleet: FleetContext) -> None:
    import hashlib

    from duckfleet.fleet.cli_pxe import build_image, image_store
    from duckfleet.runtime.control import duckd_path

    store = image_store(fleet)
    duckd = hashlib.sha256(duckd_path().read_bytes()).hexdigest()
    if store.current is None or store.load(store.current).duckd_sha256 != duckd:
        console.note("building the duck image")
        build_image(fleet)


def enter_lab(fleet: FleetContext, command: str | None) -> Stay | None:
    """When the site of this run is a lab of virtual machines, go where its ducks are."""
    if command is None or command in COMMANDS_OUTSIDE or not fleet.lab_dir.exists():
        return None
    from duckfleet.fleet.vm import lab, network

    namespace = network.namespace_of(fleet.lab_dir)
    if not lab.is_vm_lab(fleet.lab_dir) or not network.exists(namespace):
        return None
    try:
        is_ours = fleet.site_path.resolve() == (fleet.lab_dir / "duckfleet.toml").resolve()
    except OperatorError:
        return None  # the command itself will say which site file it lacks
    return network.Stay(namespace) if is_ours else None


def fault(
    context: typer.Context,
    duck: Annotated[str, typer.Argument(metavar="DUCK", help="Its name.")],
    name: Annotated[str, typer.Argument(metavar="FAULT", help="`duckctl lab fault DUCK list` shows them.")],
    off: Annotated[bool, typer.Option("--off", help="Take the fault away.")] = False,
) -> None:
    """Give a virtual duck a fault. Cables change at once; machines change when they start next.

    Ducks that are processes have one: bitflip.
    """
    from duckfleet.fleet.lab import bitflip
    from duckfleet.fleet.vm import faults, lab

    if name == "list":
        console.out.print(
            console.table(("fault", "what it does"), [*faults.FAULTS.items(), ("bitflip", bitflip.__doc__)])
        )
        return
    if name == "bitflip":
        console.out.print(bitflip.flip(fleet_of(context), duck), markup=False, soft_wrap=True)
        return
    fleet = _running(context)
    (chosen,) = fleet.site.select([duck])
    state = lab.set_fault(fleet.lab_dir, chosen.name, faults.check_fault(name), on=not off)
    listed = ", ".join(state.faults) or "none"
    console.out.print(f"{state.name}: faults now {listed}; power {'on' if state.powered else 'off'}", markup=False)


def power(
    context: typer.Context,
    duck: Annotated[str, typer.Argument(metavar="DUCK", help="Its name.")],
    to: Annotated[str, typer.Argument(metavar="on|off|cycle|show", help="What to do to its plug.")] = "show",
    json: Json = False,
) -> None:
    """Switch a virtual duck at its power strip, or show what strip and switch know of it."""
    from duckfleet.fleet.vm import lab

    if to not in ("on", "off", "cycle", "show"):
        raise OperatorError(f"{to!r} is none of on, off, cycle, show")
    fleet = _running(context)
    (chosen,) = fleet.site.select([duck])
    if to != "show":
        lab.set_power(fleet.lab_dir, chosen.name, to)
    (state,) = (port for port in lab.ports(fleet.lab_dir) if port.name == chosen.name)
    if json:
        console.print_json(state)
        return
    link = f"link {state.link_mbps} Mbit/s" if state.link_mbps else "no link"
    console.out.print(f"{state.name}: power {'on' if state.powered else 'off'}, {link}", markup=False)


def execute(context: typer.Context) -> None:
    """Run a command where the lab's ducks are: duckctl lab exec -- curl http://10.21.1.1:7023/

    The lab has a network of its own, so nothing outside it can reach its addresses. (`duckctl serve` speaks to the
    ducks in there and listens out here.)
    """
    import subprocess

    from duckfleet.fleet.vm import network

    fleet = _running(context)
    words = context.args or ["bash"]
    done = subprocess.run(network.inside(network.namespace_of(fleet.lab_dir), words), check=False)
    raise typer.Exit(done.returncode)


def _running(context: typer.Context) -> FleetContext:
    from duckfleet.fleet.vm import lab

    fleet = fleet_of(context)
    if not lab.is_vm_lab(fleet.lab_dir):
        raise OperatorError("no lab of virtual machines is up: `duckctl lab up --vm`")
    return FleetContext(fleet.state_dir, fleet.lab_dir / "duckfleet.toml", fleet.no_auth)
