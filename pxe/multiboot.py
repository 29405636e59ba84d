"""multiboot2 kernels as boot files: a GRUB image that carries the kernel and its command line, made on demand.

iPXE starts multiboot images of the first version only; GRUB starts the second (Multiboot2 specification, section 3).
A BIOS loads at most 480 KiB before GRUB runs (its limit for PXE images, 0x78000): a larger kernel needs UEFI.
"""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from pathlib import Path

from duckfleet.inventory.errors import OperatorError

_TARGETS = {"grub.pxe": "i386-pc-pxe", "grub.efi": "x86_64-efi"}
_PACKAGES = {"grub.pxe": "grub-common grub-pc-bin", "grub.efi": "grub-common grub-efi-amd64-bin"}
_MODULES = ("memdisk", "tar", "normal", "multiboot2", "echo", "sleep", "terminal", "serial", "reboot")
MAX_BIOS_BYTES = 256 * 1024  # what fits beside GRUB itself


class MultibootImages:
    """GRUB images by content, below a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def image(self, name: str, kernel: Path, arguments: str) -> Path:
        """`grub.pxe` or `grub.efi` for this kernel and command line. Raises `OperatorError` if it cannot be made."""
        try:
            data = kernel.read_bytes()
        except OSError as error:
            raise OperatorError(f"{kernel} cannot be read: {error.strerror}") from error
        if name == "grub.pxe" and len(data) > MAX_BIOS_BYTES:
            raise OperatorError(
                f"{kernel}: {len(data)} bytes; a BIOS takes at most {MAX_BIOS_BYTES} so, UEFI any number"
            )
        config = grub_config(arguments)
        key = hashlib.sha256(hashlib.sha256(data).digest() + config.encode()).hexdigest()[:24]
        path = self._directory / f"{key}-{name}"
        if not path.is_file():
            self._make(name, path, {"boot/grub/grub.cfg": config.encode(), "kernel": data})
        return path

    def _make(self, name: str, path: Path, files: dict[str, bytes]) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        disk = self._directory / f".{path.name}.tar"
        disk.write_bytes(_tar(files))
        draft = self._directory / f".{path.name}.new"
        prefix = "(memdisk)/boot/grub"
        command = ["grub-mkimage", "-O", _TARGETS[name], "-p", prefix, "-m", str(disk), "-o", str(draft), *_MODULES]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError as error:
            raise OperatorError(f"multiboot2 needs Debian's packages {_PACKAGES[name]}") from error
        finally:
            disk.unlink()
        if done.returncode != 0:
            hint = f"are Debian's packages {_PACKAGES[name]} installed?"
            raise OperatorError(f"grub-mkimage failed: {done.stderr.strip()} ({hint})")
        draft.replace(path)


def grub_config(arguments: str) -> str:
    """What GRUB runs. Raises `OperatorError` for a command line that GRUB would read as something else."""
    if not re.fullmatch(r"[\x20-\x7e]*", arguments) or any(character in arguments for character in "'\\"):
        raise OperatorError(f"command line {arguments!r}: quotes, backslashes and control characters cannot be in it")
    # Words are quoted one by one: GRUB joins them with single spaces, and leading ones would be lost anyway.
    words = " ".join(f"'{word}'" for word in arguments.split(" ") if word)
    return f"multiboot2 (memdisk)/kernel {words}\nboot\n"


def _tar(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()
