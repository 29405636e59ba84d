"""The keys of a fleet: made once, shown by fingerprint, rotated. `docs/operations.md` says what they protect."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.wire import FleetKeys

SSH_KEY_FILE = "ssh_ed25519"
SECRET_FILES = ("fleet.key", "enrolment.secret", SSH_KEY_FILE)
FILES = ("fleet.key", "fleet.pub", "enrolment.secret", SSH_KEY_FILE, SSH_KEY_FILE + ".pub")


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file as it lies there."""

    path: Path
    mode: int
    is_secret: bool

    @property
    def is_safe(self) -> bool:
        return not self.is_secret or self.mode & 0o077 == 0


def make_keys(keys_dir: Path) -> bool:
    """Make what is missing of the fleet's keys. False when all of them were there."""
    made = False
    if not (keys_dir / "fleet.key").exists():
        FleetKeys.generate().save(keys_dir)
        made = True
    if not (keys_dir / SSH_KEY_FILE).exists():
        _make_ssh_key(keys_dir / SSH_KEY_FILE)
        made = True
    return made


def rotate_keys(keys_dir: Path) -> Path:
    """Put the keys aside and make new ones. Returns the folder in which the old ones are kept.

    Ducks that run with the old keys refuse the new ones: end their daemons first, and build a new image.
    """
    FleetKeys.load(keys_dir)  # says what is wrong before anything is moved
    aside = keys_dir / time.strftime("until-%Y%m%d-%H%M%S")
    try:
        aside.mkdir(mode=0o700)
        for name in FILES:
            if (keys_dir / name).exists():
                (keys_dir / name).replace(aside / name)
    except OSError as error:
        raise OperatorError(f"{keys_dir}: the keys cannot be put aside: {error.strerror}") from error
    make_keys(keys_dir)
    return aside


def key_files(keys_dir: Path) -> list[KeyFile]:
    """The key files that are there."""
    return [
        KeyFile(keys_dir / name, stat.S_IMODE((keys_dir / name).stat().st_mode), name in SECRET_FILES)
        for name in FILES
        if (keys_dir / name).exists()
    ]


def fingerprint(public: bytes) -> str:
    """Sixteen hex digits to compare by eye (BLAKE2b of the public key)."""
    digest = hashlib.blake2b(public, digest_size=8).hexdigest()
    return "-".join(digest[i : i + 4] for i in range(0, 16, 4))


def _make_ssh_key(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
        path.with_name(path.name + ".pub").write_bytes(public + b" duckfleet\n")
        scratch.replace(path)
    except OSError as error:
        raise OperatorError(f"{path}: the ssh key cannot be written: {error.strerror}") from error
