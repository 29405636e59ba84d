"""The fleet's keys and the files they lie in.

`fleet.key` (0600) and `fleet.pub` are an X25519 pair, `enrolment.secret` (0600) is what every duck also knows. Each
file is one line of 64 hexadecimal digits. The public half and the enrolment secret travel in the boot image;
`fleet.key` never leaves the host. Rosters and plans are signed with an Ed25519 key derived from it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from duckfleet.inventory.errors import OperatorError

KEY_BYTES = 32
PRIVATE_FILE = "fleet.key"
PUBLIC_FILE = "fleet.pub"
ENROLMENT_FILE = "enrolment.secret"
_LOST_KEY = (
    "bring back a copy of it, or begin anew: move the folder aside and run `duckctl init`, then boot the ducks from a "
    "new image and place again"
)
_SIGNING_CONTEXT = b"duckfleet signing key v1"


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """X25519 pair of the fleet and the enrolment secret, 32 bytes each."""

    private: bytes = field(repr=False)
    public: bytes
    enrolment: bytes = field(repr=False)

    @classmethod
    def generate(cls) -> Self:
        """Fresh keys from the system's random source."""
        from nacl.bindings import crypto_scalarmult_base

        private = secrets.token_bytes(KEY_BYTES)
        return cls(private, crypto_scalarmult_base(private), secrets.token_bytes(KEY_BYTES))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Keys from their files. Raises `OperatorError` when one is missing, malformed or readable by others."""
        from nacl.bindings import crypto_scalarmult_base

        private = _read(directory / PRIVATE_FILE, secret=True)
        public = _read(directory / PUBLIC_FILE, secret=False)
        if crypto_scalarmult_base(private) != public:
            raise OperatorError(
                f"{directory / PUBLIC_FILE} is not the public half of {directory / PRIVATE_FILE}; {_LOST_KEY}"
            )
        return cls(private, public, _read(directory / ENROLMENT_FILE, secret=True))

    def save(self, directory: Path, *, replace: bool = False) -> None:
        """Write the three files (directory 0700). Raises `OperatorError` when keys are there and not to be replaced."""
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not replace and (directory / PRIVATE_FILE).exists():
                raise OperatorError(f"{directory} already holds fleet keys; ducks that know them would be locked out")
            _write(directory / ENROLMENT_FILE, self.enrolment, 0o600)
            _write(directory / PUBLIC_FILE, self.public, 0o644)
            _write(directory / PRIVATE_FILE, self.private, 0o600)
        except OSError as error:
            raise OperatorError(f"fleet keys cannot be written to {directory}: {error.strerror}") from error

    def sign(self, message: bytes) -> bytes:
        """Ed25519 signature, 64 bytes."""
        from nacl.signing import SigningKey

        return bytes(SigningKey(self._signing_seed()).sign(message).signature)

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether `signature` is ours over `message`."""
        from nacl.exceptions import BadSignatureError
        from nacl.signing import SigningKey

        try:
            SigningKey(self._signing_seed()).verify_key.verify(message, signature)
        except (BadSignatureError, ValueError):
            return False
        return True

    def _signing_seed(self) -> bytes:
        return hashlib.blake2b(_SIGNING_CONTEXT, key=self.private, digest_size=KEY_BYTES).digest()


def _read(path: Path, *, secret: bool) -> bytes:
    try:
        mode = path.stat().st_mode
        text = path.read_text("ascii", errors="replace").strip()
    except FileNotFoundError:
        alone = not any((path.parent / name).exists() for name in (PRIVATE_FILE, PUBLIC_FILE, ENROLMENT_FILE))
        advice = "`duckctl init` makes the fleet's keys" if alone else _LOST_KEY
        raise OperatorError(f"{path} is missing; {advice}") from None
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror}") from error
    if secret and stat.S_IMODE(mode) & 0o077:
        raise OperatorError(f"{path} can be read by others (mode {stat.S_IMODE(mode):04o}); run: chmod 600 {path}")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES or len(text) != 2 * KEY_BYTES:
        raise OperatorError(f"{path} is not one line of {2 * KEY_BYTES} hexadecimal digits; {_LOST_KEY}")
    return key


def _write(path: Path, key: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
