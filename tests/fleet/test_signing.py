"""Signed rosters and plans: what was signed passes, anything else is refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from duckfleet.fleet import trust
from duckfleet.fleet.errors import SignatureInvalid
from duckfleet.fleet.musters import load_current, make_current, save_roster
from duckfleet.fleet.signing import check_file, check_roster, sign_file, sign_roster
from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.roster import Roster, RosterDomain, RosterEntry
from duckfleet.runtime.wire import FleetKeys

KEYS = FleetKeys.generate()
ENTRY = RosterEntry(0, "ann", "10.21.1.101", "d1", 7021, 7022, 1 << 34, 2e10, 4, 5.0)
ROSTER = Roster(3, 6.0, (RosterDomain("d1", "10.21.1.1", "10.21.1.255", 1500),), (ENTRY,))


def test_what_was_signed_passes_and_signing_again_gives_the_same() -> None:
    signed = sign_roster(ROSTER, KEYS)
    check_roster(signed, KEYS, "r")
    assert sign_roster(signed, KEYS) == signed


@pytest.mark.parametrize(
    "changed",
    [
        replace(sign_roster(ROSTER, KEYS), generation=4),
        replace(sign_roster(ROSTER, KEYS), entries=(replace(ENTRY, address="10.21.1.102"),)),
        replace(sign_roster(ROSTER, KEYS), signature="00" * 64),
        replace(sign_roster(ROSTER, KEYS), signature="not hex"),
        ROSTER,
        sign_roster(ROSTER, FleetKeys.generate()),
    ],
    ids=["generation", "address", "zeros", "rubbish", "empty", "another fleet"],
)
def test_anything_else_is_refused(changed: Roster) -> None:
    with pytest.raises(SignatureInvalid, match=r"roster\.json does not bear"):
        check_roster(changed, KEYS, "roster.json")


def test_an_unsigned_roster_is_refused_by_a_fleet_with_keys_and_taken_without() -> None:
    unsigned = sign_roster(ROSTER, None)
    with pytest.raises(SignatureInvalid, match="--no-auth"):
        check_roster(unsigned, KEYS, "r")
    check_roster(unsigned, None, "r")


def test_a_changed_plan_is_refused(tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text("{}")
    sign_file(plan, KEYS)
    assert check_file(plan, KEYS) == b"{}"
    plan.write_text("{ }")
    with pytest.raises(SignatureInvalid, match=r"plan\.json"):
        check_file(plan, KEYS)
    (tmp_path / "plan.json.sig").unlink()
    with pytest.raises(SignatureInvalid, match="duckctl place"):
        check_file(plan, KEYS)


def test_a_saved_roster_stands_once_it_is_made_current(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="duckctl place"):
        load_current(tmp_path, KEYS)
    for generation in range(1, 9):
        save_roster(tmp_path, replace(ROSTER, generation=generation), f'{{"g":{generation}}}', "tiny", KEYS)
        if generation != 8:
            make_current(tmp_path, generation)
    standing = load_current(tmp_path, KEYS)
    assert (standing.roster.generation, standing.plan_text, standing.model) == (7, '{"g":7}', "tiny")
    kept = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert kept == [3, 4, 5, 6, 7, 8]
    with pytest.raises(SignatureInvalid):
        load_current(tmp_path, FleetKeys.generate())


def test_a_roster_file_with_one_byte_changed_does_not_load(tmp_path: Path) -> None:
    save_roster(tmp_path, ROSTER, "{}", "tiny", KEYS)
    make_current(tmp_path, 3)
    file = tmp_path / "3" / "roster.json"
    good = file.read_bytes()
    for at in range(0, len(good), 7):
        file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(OperatorError):
            load_current(tmp_path, KEYS)


def test_keys_are_made_once_with_safe_permissions(tmp_path: Path) -> None:
    keys_dir = tmp_path / "keys"
    assert trust.make_keys(keys_dir)
    first = FleetKeys.load(keys_dir)
    assert not trust.make_keys(keys_dir)
    assert FleetKeys.load(keys_dir) == first
    files = trust.key_files(keys_dir)
    assert {file.path.name for file in files} == set(trust.FILES)
    assert all(file.mode == 0o600 for file in files if file.is_secret)
    assert all(file.is_safe for file in files)
    assert keys_dir.stat().st_mode & 0o777 == 0o700


def test_rotated_keys_are_new_and_the_old_ones_are_kept_aside(tmp_path: Path) -> None:
    keys_dir = tmp_path / "keys"
    trust.make_keys(keys_dir)
    old = FleetKeys.load(keys_dir)
    aside = trust.rotate_keys(keys_dir)
    assert FleetKeys.load(aside) == old
    assert FleetKeys.load(keys_dir).public != old.public
    assert (aside / "ssh_ed25519").read_bytes() != (keys_dir / "ssh_ed25519").read_bytes()
    with pytest.raises(SignatureInvalid):
        check_roster(sign_roster(ROSTER, old), FleetKeys.load(keys_dir), "r")


def test_keys_that_others_can_read_are_refused(tmp_path: Path) -> None:
    trust.make_keys(tmp_path / "keys")
    (tmp_path / "keys" / "fleet.key").chmod(0o644)
    with pytest.raises(OperatorError, match="chmod 600"):
        FleetKeys.load(tmp_path / "keys")
    assert [file.path.name for file in trust.key_files(tmp_path / "keys") if not file.is_safe] == ["fleet.key"]


@pytest.mark.parametrize("file", ["current", "3/about.json", "3/roster.json", "3/plan.json", "3/plan.json.sig"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xdd noise", b"[]", b"{}", b"null", b"[" * 100_000, b"\0" * 64])
@pytest.mark.parametrize("keys", [KEYS, None], ids=["keyed", "no-auth"])
def test_whatever_lies_in_a_file_of_the_roster_is_said_not_thrown(
    tmp_path: Path, file: str, content: bytes, keys: FleetKeys | None
) -> None:
    save_roster(tmp_path, ROSTER, "{}", "tiny", keys)
    make_current(tmp_path, 3)
    (tmp_path / file).write_bytes(content)
    try:
        load_current(tmp_path, keys)
    except OperatorError as error:
        assert str(error)
    else:  # nothing but the plan's text, judged by its own reader, and its unused signature may pass without keys
        assert (keys is None and file.startswith("3/plan.json")) or content == b"{}"
