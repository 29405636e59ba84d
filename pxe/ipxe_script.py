"""iPXE scripts as text, one for each kind of boot; pure.

Commands are those of iPXE as Debian ships it (ipxe.org/cmd). `${platform}` is `efi` or `pcbios`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duckfleet.pxe.clients import BootClient, BootDomain
from duckfleet.pxe.image.images import Image
from duckfleet.pxe.policy import DuckImage, LinuxKernel, command_line

RETRY_S = 5


@dataclass(frozen=True, slots=True)
class ScriptContext:
    """Who asks, in which domain, at what time by the host's clock, and below which URL its files are."""

    client: BootClient
    domain: BootDomain
    now_s: int
    url: str  # http://HOST:PORT/duck/MAC


def duck_arguments(choice: DuckImage, image: Image, context: ScriptContext) -> tuple[str, ...]:
    """The kernel command line of the duck image: what its init reads as settings, and what the kernel itself takes."""
    client, domain = context.client, context.domain
    settings = {
        "mac": client.mac,
        "name": client.label,
        "boot": context.url,
        "broadcast": domain.broadcast,
        "control_port": domain.control_port,
        "data_port": domain.data_port,
        "image": image.id,
        "time": context.now_s,
    }
    isolated = choice.isolated_cpus
    isolation = (f"isolcpus={isolated}", f"nohz_full={isolated}", f"rcu_nocbs={isolated}", "irqaffinity=0")
    return (
        "console=tty0",
        "console=ttyS0,115200",
        "loglevel=4",
        "panic=30",
        "nowatchdog",
        *(isolation if isolated else ()),
        *(f"duckfleet.{key}={value}" for key, value in settings.items()),
        *choice.arguments.split(),
    )


def duck_script(choice: DuckImage, image: Image, context: ScriptContext) -> str:
    """Boot the duck image."""
    arguments = " ".join(duck_arguments(choice, image, context))
    return linux_script(context, f"duck image {image.id}", "vmlinuz", [f.name for f in image.layers], arguments)


def kernel_script(choice: LinuxKernel, context: ScriptContext) -> str:
    """Boot a kernel the operator named."""
    initrds = [f"initrd-{number}" for number in range(len(choice.initrds))]
    arguments = command_line(choice.command_line, context.client, context.domain.host_address)
    return linux_script(context, f"kernel {choice.kernel.name}", "kernel", initrds, arguments)


def linux_script(context: ScriptContext, what: str, kernel: str, initrds: Sequence[str], arguments: str) -> str:
    # EFI kernels find their initramfs files by these names; BIOS hands them over itself and ignores the names.
    names = "".join(f" initrd={name}" for name in initrds)
    load = [f"kernel {context.url}/{kernel}{names} {arguments}".rstrip()]
    load += [f"initrd {context.url}/{name}" for name in initrds]
    return _script(context, what, [f"{line} || goto failed" for line in (*load, "boot")])


def memtest_script(context: ScriptContext) -> str:
    """memtest86+, in the form that this firmware can start."""
    return _script(
        context,
        "memtest86+",
        [
            "iseq ${platform} efi && goto efi ||",
            f"kernel {context.url}/memtest.bin || goto failed",
            "boot || goto failed",
            ":efi",
            f"chain {context.url}/memtest.efi || goto failed",
        ],
    )


def multiboot2_script(context: ScriptContext, what: str) -> str:
    """A multiboot2 kernel by way of a GRUB that carries it: iPXE itself knows only the first multiboot."""
    return _script(
        context,
        what,
        [
            "iseq ${platform} efi && goto efi ||",
            f"chain {context.url}/grub.pxe || goto failed",
            ":efi",
            f"chain {context.url}/grub.efi || goto failed",
        ],
    )


def disk_script(context: ScriptContext) -> str:
    """The local disk: EFI goes on to its next boot entry when we leave, BIOS has to be told the drive."""
    return _script(
        context,
        "local disk",
        [
            "iseq ${platform} efi && exit 1 ||",
            "sanboot --no-describe --drive 0x80 || goto failed",
        ],
    )


def unknown_script(mac: str) -> str:
    """For a machine that is not in the site file: say so on its screen and go on to its next boot entry."""
    return (
        "#!ipxe\n"
        f"echo This machine, {mac}, is not in the site file.\n"
        "echo Add it there (duckctl discover proposes it), then start it again.\n"
        "sleep 10\n"
        "exit 1\n"
    )


def _script(context: ScriptContext, what: str, commands: Sequence[str]) -> str:
    lines = [
        "#!ipxe",
        f"echo {context.client.label} ({context.client.mac}): {what}",
        "imgfree",
        *commands,
        ":failed",
        # The host may be rebooting, or the policy about to be mended: ask again, with the network we have.
        f"echo Failed; trying again in {RETRY_S} s",
        f"sleep {RETRY_S}",
        f"chain --replace {context.url}/boot.ipxe || goto failed",
    ]
    return "\n".join(lines) + "\n"
