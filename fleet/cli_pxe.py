"""`duckctl boot`, `pxe` and `image`: network boot of ducks and what they boot."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duckfleet.fleet import console
from duckfleet.fleet.cli_options import Ducks, Json, Timeout, Wait, fleet_of
from duckfleet.fleet.context import FleetContext
from duckfleet.inventory.errors import OperatorError

if TYPE_CHECKING:
    from duckfleet.pxe.boot_files import BootFiles
    from duckfleet.pxe.events import BootEvent
    from duckfleet.pxe.image.images import Image, ImageStore
    from duckfleet.pxe.policy import BootChoice, PolicyFile
    from duckfleet.pxe.service import BootService

pxe_app = typer.Typer(no_args_is_help=True, help="Network boot: DHCP, TFTP and HTTP for the ducks.")
image_app = typer.Typer(no_args_is_help=True, help="The image that ducks boot: build, list, roll out.")
READY = "serving"  # the first word of the line that says all ports are open

HttpPort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the HTTP server on each domain's address.")]
Mode = Annotated[
    str, typer.Option(help="dhcp: give addresses too. proxy: another server gives them, only say what to boot.")
]
Unknown = Annotated[str, typer.Option(help="Machines that are not in the site file: ignore, or discover.")]


def register(app: typer.Typer) -> None:
    app.command("boot")(boot)
    app.add_typer(pxe_app, name="pxe")
    app.add_typer(image_app, name="image")


# -- where things are ---------------------------------------------------------------------------------------


def image_store(fleet: FleetContext) -> ImageStore:
    from duckfleet.pxe.image.images import ImageStore

    return ImageStore(fleet.state_dir / "images")


def policy_file(fleet: FleetContext) -> PolicyFile:
    from duckfleet.pxe.policy import PolicyFile

    return PolicyFile(fleet.state_dir / "pxe" / "policy.json")


def boot_files(fleet: FleetContext) -> BootFiles:
    from duckfleet.pxe.boot_files import BootFiles
    from duckfleet.pxe.multiboot import MultibootImages

    return BootFiles(image_store(fleet), MultibootImages(fleet.state_dir / "pxe" / "multiboot"))


def run_dir(fleet: FleetContext) -> Path:
    """Where dnsmasq's files lie: not in the state directory, which nobody but its owner may enter."""
    import hashlib

    name = hashlib.sha256(str(fleet.state_dir).encode()).hexdigest()[:8]
    return Path("/run/duckfleet") / f"pxe-{name}"


def ssh_key(fleet: FleetContext) -> str:
    """The fleet's ssh key for ducks, made when there is none: the public half as a line of authorized_keys."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    path = fleet.keys_dir / "ssh_ed25519"
    public = path.with_suffix(".pub")
    if not path.exists():
        key = Ed25519PrivateKey.generate()
        fleet.keys_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
        )
        line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public.write_text(f"{line.decode()} duckfleet\n")
    return public.read_text().strip()


def make_service(fleet: FleetContext, http_port: int, mode: str, unknown: str, *, quiet: bool) -> BootService:
    """The boot service of this fleet, its events going into the store."""
    from duckfleet.fleet.boot_events import BootRecorder
    from duckfleet.pxe.clients import from_site
    from duckfleet.pxe.dnsmasq_config import ServiceSettings
    from duckfleet.pxe.service import BootService

    recorder = BootRecorder(fleet.site, fleet.known_store)

    def listen(event: BootEvent) -> None:
        recorder(event)
        if not quiet:
            details = "  ".join(f"{key} {value}" for key, value in event.evidence.items() if key != "path")
            who = event.client or event.mac or "?"
            line = f"{console.moment(event.at_s)}  {who}  {event.kind}  {details}"
            console.out.print(line if len(line) < 200 else line[:197] + "…", markup=False, soft_wrap=True)

    settings = ServiceSettings(run_dir(fleet), http_port, mode, unknown)
    return BootService(from_site(fleet.site), settings, policy_file(fleet), boot_files(fleet), listen)


# -- boot ---------------------------------------------------------------------------------------------------


def boot(
    context: typer.Context,
    ducks: Ducks = None,
    wait: Wait = False,
    timeout: Timeout = None,
    http_port: HttpPort = 7023,
    json: Json = False,
) -> None:
    """Wake ducks and see to it that they find something to boot.

    Like `duckctl wake`, but with a boot service: the one that runs already (`duckctl pxe serve`), or, with --wait,
    one of its own for as long as it waits.
    """
    from duckfleet.fleet.cli_power import wake

    fleet = fleet_of(context)
    by_network = any(domain.interface != "lo" for domain in fleet.site.domains)
    if not by_network or serves(fleet, http_port):
        wake(context, ducks, wait, timeout, json)
        return
    if not wait:
        raise OperatorError("no boot service runs: start `duckctl pxe serve`, or say --wait to have one while it waits")
    with make_service(fleet, http_port, "dhcp", "ignore", quiet=True):
        wake(context, ducks, wait, timeout, json)


def serves(fleet: FleetContext, http_port: int) -> bool:
    """Whether a boot service answers on every domain of the site."""
    import socket

    try:
        for domain in fleet.site.domains:
            socket.create_connection((domain.host_address, http_port), 2.0).close()
    except OSError:
        return False
    return True


# -- pxe ----------------------------------------------------------------------------------------------------


@pxe_app.command("serve")
def serve(
    context: typer.Context,
    http_port: HttpPort = 7023,
    mode: Mode = "dhcp",
    unknown: Unknown = "ignore",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not print what happens; the log has it.")] = False,
) -> None:
    """Answer to ducks that boot from the network, until interrupted.

    One dnsmasq for DHCP and TFTP on the interfaces of all domains, one HTTP server for kernel and image. Anyone who
    can answer DHCP on a segment can boot its machines into something else: keep other people off these segments.
    """
    fleet = fleet_of(context)
    if os.geteuid() != 0:
        raise OperatorError("DHCP and TFTP use ports below 1024: run `duckctl pxe serve` as root")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with make_service(fleet, http_port, mode, unknown, quiet=quiet) as service:
        addresses = ", ".join(f"{domain.name} {domain.host_address}" for domain in fleet.site.domains)
        console.out.print(f"{READY} {len(fleet.site.ducks)} ducks: {addresses}", markup=False, soft_wrap=True)
        num_restarts = 0
        while not stop.wait(1.0):
            if service.dnsmasq.num_restarts > num_restarts:
                num_restarts = service.dnsmasq.num_restarts
                console.err.print(f"dnsmasq ended and was started again ({num_restarts} times)", style="yellow")


@pxe_app.command("check")
def check(
    context: typer.Context, http_port: HttpPort = 7023, mode: Mode = "dhcp", unknown: Unknown = "ignore",
    json: Json = False,
) -> None:  # fmt: skip
    """Look for what would keep ducks from booting: interfaces, ports, another DHCP server, Secure Boot, no image."""
    from duckfleet.fleet.boot_events import past_boot_events
    from duckfleet.fleet.cli import EXIT_FAILED
    from duckfleet.pxe.check import check_all
    from duckfleet.pxe.clients import from_site
    from duckfleet.pxe.dnsmasq_config import ServiceSettings

    fleet = fleet_of(context)
    past = past_boot_events(fleet.known_store.events(limit=5000))
    settings = ServiceSettings(run_dir(fleet), http_port, mode, unknown)
    results = check_all(from_site(fleet.site), settings, boot_files(fleet), policy_file(fleet).load(), past)
    if json:
        console.print_json(results)
    else:
        for result in results:
            style = {"ok": "green", "warning": "yellow", "failure": "bold red"}.get(result.verdict, "dim")
            console.out.print(f"[{style}]{result.verdict:8}[/]", end="")
            console.out.print(f"{result.subject}: {result.finding}", markup=False, soft_wrap=True)
    if any(result.verdict == "failure" for result in results):
        raise typer.Exit(EXIT_FAILED)


@pxe_app.command("show")
def show(context: typer.Context, ducks: Ducks = None, json: Json = False) -> None:
    """Show what each duck boots."""
    from duckfleet.pxe.clients import from_site
    from duckfleet.pxe.policy import describe

    fleet = fleet_of(context)
    policy = policy_file(fleet).load()
    clients = {client.mac: client for client in from_site(fleet.site).clients}
    chosen = fleet.site.select(ducks or [])
    rows = [(duck.name, duck.mac, describe(policy.decide(clients[duck.mac]))) for duck in chosen]
    if json:
        console.print_json([{"duck": name, "mac": mac, "boots": what} for name, mac, what in rows])
    else:
        console.out.print(console.table(("duck", "mac", "boots"), rows))


@pxe_app.command("set")
def set_boot(
    context: typer.Context,
    ducks: Ducks = None,
    default: Annotated[bool, typer.Option("--default", help="What everybody boots: the current duck image.")] = False,
    image: Annotated[str, typer.Option(metavar="ID", help="This duck image (`duckctl image list`).")] = "",
    memtest: Annotated[bool, typer.Option("--memtest", help="memtest86+.")] = False,
    disk: Annotated[bool, typer.Option("--disk", help="The local disk.")] = False,
    kernel: Annotated[Path | None, typer.Option(help="A kernel with the Linux boot protocol.")] = None,
    initrd: Annotated[list[Path] | None, typer.Option(help="With --kernel: an initramfs; may be repeated.")] = None,
    multiboot2: Annotated[Path | None, typer.Option(help="A multiboot2 kernel, such as JudgeDuck-OS.")] = None,
    command_line: Annotated[
        str, typer.Option(metavar="TEXT", help="Kernel command line; {name} {mac} {address} {host} are filled in.")
    ] = "",
) -> None:
    """Decide what ducks boot from their next start on. Needs no restart of `duckctl pxe serve`.

    For JudgeDuck-OS: duckctl pxe set duck104 --multiboot2 kernel.bin --command-line " ip = {address} mac = {mac}"
    """
    fleet = fleet_of(context)
    if not ducks:
        raise OperatorError("name the ducks; @DOMAIN is all of a domain")
    wanted = [default, bool(image), memtest, disk, kernel is not None, multiboot2 is not None]
    if sum(wanted) != 1:
        raise OperatorError("say exactly one of --default, --image, --memtest, --disk, --kernel, --multiboot2")
    choice = _choice(fleet, image, memtest, disk, kernel, initrd or [], multiboot2, command_line)
    file = policy_file(fleet)
    chosen = fleet.site.select(ducks)
    file.save(file.load().changed(tuple(duck.mac for duck in chosen), choice))
    console.out.print(f"{len(chosen)} ducks changed; it takes hold when they start next")


def _choice(
    fleet: FleetContext,
    image: str,
    memtest: bool,
    disk: bool,
    kernel: Path | None,
    initrds: list[Path],
    multiboot2: Path | None,
    command_line: str,
) -> BootChoice | None:
    from duckfleet.pxe import policy
    from duckfleet.pxe.clients import from_site

    for path in (kernel, multiboot2, *initrds):
        if path is not None and not path.is_file():
            raise OperatorError(f"{path} is not a file")
    for client in from_site(fleet.site).clients[:1]:
        policy.command_line(command_line, client, "10.0.0.1")  # complains of placeholders nobody fills
    if image:
        image_store(fleet).load(image)
        return policy.DuckImage(image, arguments=command_line)
    if memtest:
        return policy.Memtest()
    if disk:
        return policy.LocalDisk()
    if kernel is not None:
        return policy.LinuxKernel(kernel.absolute(), tuple(path.absolute() for path in initrds), command_line)
    if multiboot2 is not None:
        return policy.Multiboot2(multiboot2.absolute(), command_line)
    return None


# -- image --------------------------------------------------------------------------------------------------


@image_app.command("build")
def build(
    context: typer.Context,
    python: Annotated[bool, typer.Option("--python", help="Also the layer with Python, for Ansible.")] = False,
    kernel: Annotated[str, typer.Option(help="Debian package of the kernel.")] = "linux-image-amd64",
    duckd: Annotated[Path | None, typer.Option(help="Another duckd than the installed one.")] = None,
    ssh_key_file: Annotated[
        list[Path] | None, typer.Option("--ssh-key", help="A public key that may also log in; may be repeated.")
    ] = None,
) -> None:
    """Build the duck image from Debian's packages and make it the current one. Same inputs, same bytes."""
    made = build_image(fleet_of(context), python=python, kernel=kernel, duckd=duckd, ssh_keys=ssh_key_file or [])
    for warning in made.warnings:
        console.err.print(f"warning: {warning}", style="yellow", markup=False)
    sizes = ", ".join(f"{file.name} {console.size(file.num_bytes)}" for file in (made.kernel, *made.layers))
    console.out.print(f"image {made.id}: kernel {made.kernel_version}; {sizes}", markup=False, soft_wrap=True)


def build_image(
    fleet: FleetContext,
    *,
    python: bool = False,
    kernel: str = "linux-image-amd64",
    duckd: Path | None = None,
    ssh_keys: Sequence[Path] = (),
) -> Image:
    """Build an image with this fleet's keys and make it current."""
    from duckfleet.fleet.trust import make_keys
    from duckfleet.pxe.image import build as builder
    from duckfleet.runtime.control import duckd_path

    if fleet.no_auth:
        raise OperatorError("an image carries the fleet's key: there is none with --no-auth")
    if not fleet.no_auth:
        make_keys(fleet.keys_dir)
    for path in ssh_keys:
        if not path.is_file():
            raise OperatorError(f"--ssh-key {path}: is not a file")
    inputs = builder.ImageInputs(
        duckd or duckd_path(),
        fleet.keys_dir / "fleet.pub",
        fleet.keys_dir / "enrolment.secret",
        (ssh_key(fleet), *(path.read_text().strip() for path in ssh_keys)),
        kernel,
        python,
    )
    fleet.make_state_dir()
    return builder.build_image(inputs, image_store(fleet), builder.default_cache(), console.note)


@image_app.command("list")
def list_images(context: typer.Context, json: Json = False) -> None:
    """Show the images there are, newest first."""
    store = image_store(fleet_of(context))
    images = [store.load(image_id) for image_id in store.ids()]
    if json:
        console.print_json([{"current": image.id == store.current, "image": image} for image in images])
        return
    rows = [
        (
            image.id,
            "current" if image.id == store.current else "",
            image.kernel_version,
            console.size(image.num_bytes),
            image.duckd_sha256[:12],
            ", ".join(file.name.removesuffix(".img") for file in image.extra_layers),
        )
        for image in images
    ]
    console.out.print(console.table(("image", "", "kernel", "size", "duckd", "layers"), rows, numeric=("size",)))


@image_app.command("use")
def use(
    context: typer.Context,
    image: Annotated[str, typer.Argument(metavar="ID", help="Which image (`duckctl image list`).")],
    ducks: Ducks = None,
) -> None:
    """Roll an image out: to the named ducks, duck by duck, or (without any) to all that have no other choice."""
    from duckfleet.pxe.policy import DuckImage

    fleet = fleet_of(context)
    store = image_store(fleet)
    if not ducks:
        store.set_current(image)
        console.out.print(f"image {image} is the current one; ducks boot it when they start next")
        return
    store.load(image)
    file = policy_file(fleet)
    chosen = fleet.site.select(ducks)
    file.save(file.load().changed(tuple(duck.mac for duck in chosen), DuckImage(image)))
    console.out.print(f"{len(chosen)} ducks boot image {image} when they start next")
