"""The files behind what machines boot: loaders, images, memtest86+, kernels that an operator named."""

from __future__ import annotations

from pathlib import Path

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import BootClient, BootDomain
from duckfleet.pxe.dnsmasq_config import BIOS_LOADER, EFI_LOADER
from duckfleet.pxe.image.images import Image, ImageStore
from duckfleet.pxe.multiboot import MultibootImages
from duckfleet.pxe.policy import BootChoice, DuckImage, LinuxKernel, Memtest, Multiboot2, command_line

IPXE_DIR = Path("/usr/lib/ipxe")  # Debian's package ipxe
# Debian's package memtest86+, installed or unpacked into a directory of ours.
MEMTEST_FILES = {"memtest.bin": "memtest86+x64.bin", "memtest.efi": "memtest86+x64.efi"}


class BootFiles:
    """Finds files; writes none but the GRUB images that carry multiboot2 kernels."""

    def __init__(
        self,
        images: ImageStore,
        multiboot: MultibootImages,
        ipxe_dir: Path = IPXE_DIR,
        memtest_dirs: tuple[Path, ...] = (Path("/boot"),),
    ) -> None:
        self._images = images
        self._multiboot = multiboot
        self._ipxe_dir = ipxe_dir
        self._memtest_dirs = memtest_dirs

    def loader(self, name: str) -> Path | None:
        """A boot loader by name, or None if that is no name of one."""
        return self._ipxe_dir / name if name in (BIOS_LOADER, EFI_LOADER) else None

    def image(self, choice: DuckImage) -> Image:
        """The image a choice means. Raises `OperatorError` when there is none."""
        image_id = choice.image_id or self._images.current
        if not image_id:
            raise OperatorError("there is no duck image yet: run `duckctl image build`")
        return self._images.load(image_id)

    def layer(self, choice: DuckImage, name: str) -> Path | None:
        image = self.image(choice)
        file = next((file for file in image.extra_layers if file.name == f"{name}.img"), None)
        return self._images.path(image, file) if file else None

    def memtest(self, name: str) -> Path:
        """memtest86+ for one kind of firmware. Raises `OperatorError` when it is not installed."""
        for folder in self._memtest_dirs:
            if (path := folder / MEMTEST_FILES[name]).is_file():
                return path
        raise OperatorError("memtest86+ is not here: install Debian's package memtest86+")

    def of_choice(self, choice: BootChoice, client: BootClient, domain: BootDomain, name: str) -> Path | None:
        """The file that a machine with this choice knows as `name`, or None: nothing else is served to it."""
        match choice:
            case DuckImage():
                image = self.image(choice)
                file = next((file for file in (image.kernel, *image.layers) if file.name == name), None)
                return self._images.path(image, file) if file else None
            case Memtest() if name in MEMTEST_FILES:
                return self.memtest(name)
            case LinuxKernel():
                files = {"kernel": choice.kernel, **{f"initrd-{i}": path for i, path in enumerate(choice.initrds)}}
                return files.get(name)
            case Multiboot2() if name in ("grub.pxe", "grub.efi"):
                arguments = command_line(choice.command_line, client, domain.host_address)
                return self._multiboot.image(name, choice.kernel, arguments)
        return None
