"""Signed files: a record in canonical JSON, and the fleet's Ed25519 signature over it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from duckfleet.fleet.errors import SignatureInvalid
from duckfleet.inventory.codec import BadRecord, canonical_json, from_plain, to_plain
from duckfleet.inventory.roster import Roster
from duckfleet.runtime.wire import FleetKeys

UNSIGNED = "unsigned"
"""What stands in place of a signature in a fleet run with --no-auth."""


def sign_roster(roster: Roster, keys: FleetKeys | None) -> Roster:
    """The roster with its signature over the canonical JSON without it."""
    if keys is None:
        return replace(roster, signature=UNSIGNED)
    return replace(roster, signature=keys.sign(_signed_part(roster)).hex())


def check_roster(roster: Roster, keys: FleetKeys | None, where: str) -> None:
    """Raises `SignatureInvalid` naming `where` unless the roster bears this fleet's signature. No keys: no check."""
    if keys is None:
        return
    if roster.signature == UNSIGNED:
        raise SignatureInvalid(f"{where} is not signed (it was made with --no-auth); run `duckctl place` again")
    if not keys.verify(_signed_part(roster), _bytes(roster.signature)):
        raise SignatureInvalid(
            f"{where} does not bear this fleet's signature: it was changed, or the keys were; run `duckctl place` again"
        )


def _signed_part(roster: Roster) -> bytes:
    plain = to_plain(roster)
    del plain["signature"]
    return canonical_json(plain)


def sign_file(path: Path, keys: FleetKeys | None) -> None:
    """Write `<path>.sig`, the signature over the file's bytes."""
    text = UNSIGNED if keys is None else keys.sign(path.read_bytes()).hex()
    _signature_path(path).write_text(text + "\n")


def check_file(path: Path, keys: FleetKeys | None) -> bytes:
    """The file's bytes, when they bear this fleet's signature. Raises `SignatureInvalid`."""
    try:
        content = path.read_bytes()
        text = _signature_path(path).read_text(errors="replace").strip()  # noise is no signature either
    except OSError as error:
        raise SignatureInvalid(f"{error.filename}: {error.strerror}; run `duckctl place` again") from error
    if keys is not None and not keys.verify(content, _bytes(text)):
        raise SignatureInvalid(f"{path} does not bear this fleet's signature; run `duckctl place` again")
    return content


def roster_from_json(text: bytes, where: str) -> Roster:
    """Raises `BadRecord` naming `where`."""
    import json

    try:
        return from_plain(Roster, json.loads(text), where)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{where} is not JSON: {error}") from error


def _signature_path(path: Path) -> Path:
    return path.with_name(path.name + ".sig")


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
