"""`duckctl image build`: fetch packages, make the layers, write the image. Same inputs, same bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.image import cpio, layers
from duckfleet.pxe.image.cpio import Node
from duckfleet.pxe.image.debs import DebCache, Package, PackagesUnavailable, unpack
from duckfleet.pxe.image.hardware import SUPPORTED_NICS
from duckfleet.pxe.image.images import Image, ImageStore, image_file

FIRMWARE_PACKAGE = "firmware-realtek"
MAX_BASE_BYTES = 60_000_000


@dataclass(frozen=True, slots=True)
class ImageInputs:
    """What an image is made of besides Debian's packages and our own files."""

    duckd: Path
    fleet_key: Path  # public half
    enrolment: Path
    ssh_keys: tuple[str, ...]  # lines of authorized_keys
    kernel_package: str = "linux-image-amd64"
    with_python: bool = False


def default_cache() -> Path:
    """Where packages and unchanged layers are kept between builds; nothing of a fleet lies there."""
    home = os.environ.get("DUCKFLEET_CACHE") or os.environ.get("XDG_CACHE_HOME")
    return Path(home) if home else Path.home() / ".cache" / "duckfleet"


def build_image(
    inputs: ImageInputs, store: ImageStore, cache: Path, say: Callable[[str], None] = lambda _: None
) -> Image:
    """Make an image and make it the current one.

    Raises `OperatorError` for inputs that cannot be used and `PackagesUnavailable` when apt cannot provide.
    """
    duckd, fleet_key, enrolment = (_read(path) for path in (inputs.duckd, inputs.fleet_key, inputs.enrolment))
    duckd_layer = layers.compress(cpio.write(layers.duckd_tree(duckd)))
    debs = DebCache(cache / "debs", say)
    base = _Base.make(debs, cache, inputs.kernel_package, say)
    extra = {"python.img": _python_layer(debs, cache, say)} if inputs.with_python else {}

    inputs_digest = hashlib.sha256()
    for part in (base.kernel, base.layer, duckd_layer, fleet_key, enrolment, *(k.encode() for k in inputs.ssh_keys)):
        inputs_digest.update(hashlib.sha256(part).digest())
    image_id = inputs_digest.hexdigest()[:12]
    site_layer = layers.compress(cpio.write(layers.site_tree(image_id, fleet_key, enrolment, inputs.ssh_keys)))
    contents = {
        "vmlinuz": base.kernel,
        "base.img": base.layer,
        "duckd.img": duckd_layer,
        "site.img": site_layer,
        **extra,
    }
    image = Image(
        id=image_id,
        kernel_version=base.kernel_version,
        kernel=image_file("vmlinuz", base.kernel),
        layers=tuple(image_file(name, contents[name]) for name in ("base.img", "duckd.img", "site.img")),
        extra_layers=tuple(image_file(name, data) for name, data in extra.items()),
        packages=base.packages,
        duckd_sha256=hashlib.sha256(duckd).hexdigest(),
        warnings=base.warnings,
    )
    store.save(image, contents)
    store.set_current(image_id)
    return image


@dataclass(frozen=True, slots=True)
class _Base:
    kernel: bytes
    kernel_version: str
    layer: bytes
    packages: tuple[str, ...]
    warnings: tuple[str, ...]

    @classmethod
    def make(cls, debs: DebCache, cache: Path, kernel_meta: str, say: Callable[[str], None]) -> _Base:
        kernel_packages = debs.fetch([debs.kernel_package(kernel_meta)])
        program_packages = debs.fetch(debs.closure(layers.PROGRAM_PACKAGES))
        warnings: tuple[str, ...] = ()
        try:
            firmware_packages: tuple[Package, ...] = (debs.fetch_firmware(FIRMWARE_PACKAGE),)
        except PackagesUnavailable as error:
            cards = ", ".join(nic.name for nic in SUPPORTED_NICS if nic.firmware)
            warnings = (f"no {FIRMWARE_PACKAGE} ({error}): {cards} may run slower or not at all",)
            firmware_packages = ()
        packages = (*kernel_packages, *program_packages, *firmware_packages)
        version = kernel_packages[0].name.removeprefix("linux-image-")
        key = _key(packages, [(path, node.data) for path, node in sorted(layers.root_files().items())])
        layer_path, kernel_path = cache / "layers" / f"{key}.img", cache / "layers" / f"{key}.vmlinuz"
        if not (layer_path.is_file() and kernel_path.is_file()):
            say(f"making the base layer from kernel {version}")
            kernel_tree = _unpack_all(kernel_packages)
            tree = layers.base_tree(kernel_tree, _unpack_all(program_packages), _unpack_all(firmware_packages))
            layer = layers.compress(cpio.write(tree))
            if len(layer) > MAX_BASE_BYTES:
                raise OperatorError(f"the base layer is {len(layer)} bytes, more than {MAX_BASE_BYTES}")
            _keep(kernel_path, kernel_tree[f"boot/vmlinuz-{layers.kernel_version(kernel_tree)}"].data)
            _keep(layer_path, layer)
        listed = tuple(f"{package.name}={package.version} {package.sha256}" for package in packages)
        return cls(kernel_path.read_bytes(), version, layer_path.read_bytes(), listed, warnings)


def _python_layer(debs: DebCache, cache: Path, say: Callable[[str], None]) -> bytes:
    packages = debs.fetch(debs.closure(layers.PYTHON_PACKAGES, layers.NOT_FOR_PYTHON))
    path = cache / "layers" / f"{_key(packages, [])}.python.img"
    if not path.is_file():
        say("making the Python layer")
        _keep(path, layers.compress(cpio.write(layers.python_tree(_unpack_all(packages)))))
    return path.read_bytes()


def _key(packages: Sequence[Package], files: Sequence[tuple[str, bytes]]) -> str:
    """Names a cached layer by its inputs, the code that makes it among them."""
    digest = hashlib.sha256()
    for package in packages:
        digest.update(f"{package.name} {package.sha256}\n".encode())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    for name, data in (*files, *((path.name, path.read_bytes()) for path in sources)):
        digest.update(f"{name} {hashlib.sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()[:24]


def _unpack_all(packages: Sequence[Package]) -> dict[str, Node]:
    tree: dict[str, Node] = {}
    for package in packages:
        tree.update(unpack(package, lambda path: True))
    return tree


def _keep(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.replace(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OperatorError(f"{path} cannot be read for the image: {error.strerror}") from error
