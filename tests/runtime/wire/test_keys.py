"""Fleet keys: files, permissions, signatures."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.runtime.wire import FleetKeys


def test_save_and_load(tmp_path: Path) -> None:
    keys = FleetKeys.generate()
    keys.save(tmp_path / "keys")
    assert FleetKeys.load(tmp_path / "keys") == keys
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "keys").iterdir()}
    assert modes == {"fleet.key": 0o600, "fleet.pub": 0o644, "enrolment.secret": 0o600}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700


def test_secrets_do_not_show_in_repr() -> None:
    keys = FleetKeys.generate()
    assert keys.private.hex() not in repr(keys)
    assert repr(keys.private) not in repr(keys)
    assert repr(keys.enrolment) not in repr(keys)


def test_keys_are_not_overwritten_by_accident(tmp_path: Path) -> None:
    FleetKeys.generate().save(tmp_path)
    with pytest.raises(OperatorError, match="already holds fleet keys"):
        FleetKeys.generate().save(tmp_path)
    FleetKeys.generate().save(tmp_path, replace=True)


@pytest.mark.parametrize("name", ["fleet.key", "enrolment.secret"])
def test_secret_open_to_others_is_refused(tmp_path: Path, name: str) -> None:
    FleetKeys.generate().save(tmp_path)
    (tmp_path / name).chmod(0o640)
    with pytest.raises(OperatorError, match=f"{name} can be read by others.*chmod 600"):
        FleetKeys.load(tmp_path)


@pytest.mark.parametrize("name", ["fleet.key", "fleet.pub", "enrolment.secret"])
@pytest.mark.parametrize("content", ["", "zz" * 32, "ab" * 31, "ab" * 33])
def test_malformed_files(tmp_path: Path, name: str, content: str) -> None:
    FleetKeys.generate().save(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(OperatorError, match=name):
        FleetKeys.load(tmp_path)


def test_missing_files_say_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="duckctl init"):
        FleetKeys.load(tmp_path)


def test_public_half_of_another_key(tmp_path: Path) -> None:
    FleetKeys.generate().save(tmp_path)
    (tmp_path / "fleet.pub").write_text(FleetKeys.generate().public.hex())
    with pytest.raises(OperatorError, match="not the public half"):
        FleetKeys.load(tmp_path)


def test_signatures() -> None:
    keys, other = FleetKeys.generate(), FleetKeys.generate()
    signature = keys.sign(b"roster")
    assert keys.verify(b"roster", signature)
    assert not keys.verify(b"rostes", signature)
    assert not other.verify(b"roster", signature)
    assert not keys.verify(b"roster", b"short")
