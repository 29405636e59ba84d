"""GRUB images that carry a multiboot2 kernel: what GRUB is told, and that command lines stay what they are."""

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.multiboot import MAX_BIOS_BYTES, MultibootImages, grub_config


def test_each_word_of_the_command_line_is_one_of_grubs():
    assert grub_config(" ip = 10.21.1.101 mac = 02:dc:00:00:01:01") == (
        "multiboot2 (memdisk)/kernel 'ip' '=' '10.21.1.101' 'mac' '=' '02:dc:00:00:01:01'\nboot\n"
    )
    assert grub_config("$root ;reboot") == "multiboot2 (memdisk)/kernel '$root' ';reboot'\nboot\n"


@pytest.mark.parametrize("arguments", ["it's", "a\\b", "a\nreboot", "ü"])
def test_what_grub_would_read_otherwise_is_refused(arguments):
    with pytest.raises(OperatorError, match="cannot be in it"):
        grub_config(arguments)


def test_a_kernel_too_large_for_a_bios_is_refused_by_name(tmp_path):
    kernel = tmp_path / "kernel.bin"
    kernel.write_bytes(bytes(MAX_BIOS_BYTES + 1))
    with pytest.raises(OperatorError, match=r"kernel\.bin.*UEFI"):
        MultibootImages(tmp_path).image("grub.pxe", kernel, "")


def test_a_kernel_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(OperatorError, match="cannot be read"):
        MultibootImages(tmp_path).image("grub.efi", tmp_path / "none", "")
