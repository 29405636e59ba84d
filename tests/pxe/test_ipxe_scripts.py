"""iPXE scripts as text that a person has read."""

from pathlib import Path

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe import ipxe_script
from duckfleet.pxe.clients import BootClient, BootDomain
from duckfleet.pxe.image.images import Image, ImageFile
from duckfleet.pxe.ipxe_script import ScriptContext
from duckfleet.pxe.policy import DuckImage, LinuxKernel, command_line

GOLDEN = Path(__file__).parent / "golden"
DOMAIN = BootDomain("d1", "enp1s0f0", "10.21.1.1", 24, "10.21.1.255", 7021, 7022)
CLIENT = BootClient("00:e0:4c:00:00:01", "duck1101", "10.21.1.101", "d1")
CONTEXT = ScriptContext(CLIENT, DOMAIN, 1_790_000_000, "http://10.21.1.1:7023/duck/00:e0:4c:00:00:01")
LAYERS = tuple(ImageFile(name, 4, "00") for name in ("base.img", "duckd.img", "site.img"))
IMAGE = Image("b1a5c50bbc8d", "6.1.0-57-amd64", ImageFile("vmlinuz", 4, "00"), LAYERS, (), (), "00")
JUDGE = LinuxKernel(Path("/srv/kernel.bin"), (Path("/srv/a.img"),), " ip = {address} mac = {mac}")

SCRIPTS = {
    "duck": ipxe_script.duck_script(DuckImage(), IMAGE, CONTEXT),
    "duck-own-arguments": ipxe_script.duck_script(DuckImage(isolated_cpus="", arguments="debug"), IMAGE, CONTEXT),
    "kernel": ipxe_script.kernel_script(JUDGE, CONTEXT),
    "memtest": ipxe_script.memtest_script(CONTEXT),
    "disk": ipxe_script.disk_script(CONTEXT),
    "multiboot2": ipxe_script.multiboot2_script(CONTEXT, "multiboot2 kernel.bin"),
    "unknown": ipxe_script.unknown_script("00:e0:4c:ff:ff:ff"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_text_is_the_one_that_was_read(name):
    assert SCRIPTS[name] == (GOLDEN / f"{name}.ipxe").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_is_one_and_every_jump_has_its_label(name):
    lines = SCRIPTS[name].splitlines()
    assert lines[0] == "#!ipxe"
    labels = {line[1:] for line in lines if line.startswith(":")}
    jumps = {
        word for line in lines for before, word in zip(line.split(), line.split()[1:], strict=False) if before == "goto"
    }
    assert jumps <= labels
    assert SCRIPTS[name].isascii()


def test_the_command_line_of_another_kernel_is_filled_in():
    assert command_line(JUDGE.command_line, CLIENT, "10.21.1.1") == " ip = 10.21.1.101 mac = 00:e0:4c:00:00:01"


@pytest.mark.parametrize("template", ["{adress}", "{", "{0}", "{mac.x}"])
def test_a_placeholder_that_means_nothing_is_refused(template):
    with pytest.raises(OperatorError, match="is none of"):
        command_line(template, CLIENT, "10.21.1.1")
