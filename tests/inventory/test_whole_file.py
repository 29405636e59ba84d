"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckfleet.inventory.whole_file import write_whole


def test_a_new_file_and_one_that_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    write_whole(path, "first\n")
    path.chmod(0o640)
    write_whole(path, "zweite Fassung: äöü\n")
    assert path.read_text(encoding="utf-8") == "zweite Fassung: äöü\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path, link = tmp_path / "real" / "site.toml", tmp_path / "site.toml"
    path.write_text("old")
    link.symlink_to(path)
    write_whole(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_what_cannot_be_written_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    with pytest.raises(OSError):
        write_whole(folder, "text")
    assert list(tmp_path.iterdir()) == [folder]
