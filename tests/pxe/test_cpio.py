"""The archive writer against a reader of its own, against busybox, and against trees that must be refused."""

import stat
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.pxe.image import cpio

names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 255
)
nodes = st.one_of(
    st.builds(cpio.file, st.binary(max_size=300), st.sampled_from([0o600, 0o644, 0o755])),
    st.builds(cpio.symlink, names),
    st.builds(cpio.directory),
    st.builds(cpio.character_device, st.integers(0, 255), st.integers(0, 255)),
)


@given(st.dictionaries(names.filter(lambda name: name != cpio.TRAILER), nodes, max_size=8))
def test_what_is_written_is_read_back(tree):
    archive = cpio.write(tree)
    assert cpio.read(archive) == tree
    assert len(archive) % 512 == 0


@given(st.dictionaries(names.filter(lambda name: name != cpio.TRAILER), nodes, max_size=8))
def test_the_order_of_the_tree_does_not_matter(tree):
    assert cpio.write(dict(reversed(tree.items()))) == cpio.write(tree)


@given(st.binary(max_size=400))
def test_rubbish_is_an_error_of_ours(data):
    try:
        cpio.read(data)
    except (cpio.CpioError, UnicodeDecodeError):
        return
    raise AssertionError("rubbish was read as an archive")


@pytest.mark.parametrize("cut", [0, 50, 109, 111, 130, 600])
def test_a_cut_archive_is_an_error(cut):
    with pytest.raises(cpio.CpioError):
        cpio.read(cpio.write({"a": cpio.file(b"x" * 1000)})[:cut])


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../b", "TRAILER!!!", ""])
def test_paths_that_cannot_be_are_refused(path):
    with pytest.raises(cpio.CpioError, match="cannot be a path"):
        cpio.write({path: cpio.file(b"")})


def test_a_file_below_a_file_is_refused():
    with pytest.raises(cpio.CpioError, match="not a directory"):
        cpio.write({"a": cpio.file(b""), "a/b": cpio.file(b"")})


def test_parents_come_first():
    archive = cpio.write({"usr/lib/x": cpio.file(b"1")})
    assert list(cpio.read(archive)) == ["usr", "usr/lib", "usr/lib/x"]


def test_busybox_unpacks_the_same_tree(tmp_path):
    tree = {
        "bin/tool": cpio.file(b"\x7fELF" + bytes(1021), 0o755),
        "etc/secret": cpio.file(b"s", 0o600),
        "lib": cpio.symlink("usr/lib"),
        "empty": cpio.directory(0o700),
    }
    subprocess.run(["busybox", "cpio", "-id"], input=cpio.write(tree), cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "bin/tool").read_bytes() == tree["bin/tool"].data
    assert stat.S_IMODE((tmp_path / "etc/secret").stat().st_mode) == 0o600
    assert (tmp_path / "lib").readlink().as_posix() == "usr/lib"
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
