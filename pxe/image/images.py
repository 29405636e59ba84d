"""Images on disk: one directory each, named by what went into it, with a manifest that says what that was."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from duckfleet.inventory.errors import OperatorError

MANIFEST = "manifest.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True)
class ImageFile:
    """A file of an image that a duck may fetch."""

    name: str
    num_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Image:
    """A duck image: kernel, the layers of its initramfs in order, further layers by name."""

    id: str
    kernel_version: str
    kernel: ImageFile
    layers: tuple[ImageFile, ...]
    extra_layers: tuple[ImageFile, ...]
    packages: tuple[str, ...]  # name=version sha256, of every Debian package files were taken from
    duckd_sha256: str
    warnings: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """What a duck fetches to boot."""
        return self.kernel.num_bytes + sum(layer.num_bytes for layer in self.layers)

    def file(self, name: str) -> ImageFile | None:
        return next((f for f in (self.kernel, *self.layers, *self.extra_layers) if f.name == name), None)


class ImageStore:
    """The images of a fleet: `<directory>/<id>/`, and which of them is the current one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def save(self, image: Image, contents: dict[str, bytes]) -> None:
        """Write an image; readable only by its owner, because a layer holds the enrolment secret."""
        place = self.directory / image.id
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, data in contents.items():
            _write_whole(place / name, data)
        document = {"version": MANIFEST_VERSION, **asdict(image)}
        _write_whole(place / MANIFEST, (json.dumps(document, indent=2) + "\n").encode())

    def load(self, image_id: str) -> Image:
        """Raises `OperatorError` when there is no such image or its manifest is not ours."""
        path = self.directory / image_id / MANIFEST
        if "/" in image_id or not path.is_file():
            known = ", ".join(self.ids()) or "none; run `duckctl image build`"
            raise OperatorError(f"there is no image {image_id!r} in {self.directory} (there: {known})")
        try:
            document = json.loads(path.read_text())
            if document.pop("version") != MANIFEST_VERSION:
                raise ValueError("another version of the manifest")
            kernel = ImageFile(**document.pop("kernel"))
            layers = tuple(ImageFile(**entry) for entry in document.pop("layers"))
            extra = tuple(ImageFile(**entry) for entry in document.pop("extra_layers"))
            packages, warnings = tuple(document.pop("packages")), tuple(document.pop("warnings"))
            return Image(
                kernel=kernel, layers=layers, extra_layers=extra, packages=packages, warnings=warnings, **document
            )
        except (ValueError, TypeError, KeyError) as error:
            raise OperatorError(f"{path} cannot be read ({error}); build the image again") from error

    def ids(self) -> tuple[str, ...]:
        """Known images, newest first."""
        manifests = list(self.directory.glob(f"*/{MANIFEST}"))
        return tuple(path.parent.name for path in sorted(manifests, key=lambda p: (-p.stat().st_mtime, str(p))))

    def path(self, image: Image, file: ImageFile) -> Path:
        return self.directory / image.id / file.name

    @property
    def current(self) -> str | None:
        """The image a duck boots unless something else is set for it."""
        try:
            return (self.directory / "current").read_text().strip() or None
        except FileNotFoundError:
            return None

    def set_current(self, image_id: str) -> None:
        self.load(image_id)
        _write_whole(self.directory / "current", f"{image_id}\n".encode())


def image_file(name: str, data: bytes) -> ImageFile:
    return ImageFile(name, len(data), hashlib.sha256(data).hexdigest())


def _write_whole(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}.new")
    draft.touch(mode=0o600)
    draft.write_bytes(data)
    draft.replace(path)
