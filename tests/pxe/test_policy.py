"""What a machine boots: the file in which a person says so."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import BootClient
from duckfleet.pxe.policy import DuckImage, LinuxKernel, LocalDisk, Memtest, Multiboot2, Policy, PolicyFile, describe

text = st.text(st.characters(codec="utf-8"), max_size=20)
paths = st.builds(Path, st.from_regex(r"/[a-z]{1,8}(/[a-z.]{1,8}[a-z])?", fullmatch=True))
choices = st.one_of(
    st.builds(DuckImage, text, text, text),
    st.builds(Memtest),
    st.builds(LocalDisk),
    st.builds(LinuxKernel, paths, st.tuples(paths, paths) | st.just(()), text),
    st.builds(Multiboot2, paths, text),
)
macs = st.binary(min_size=6, max_size=6).map(lambda octets: octets.hex(":"))


@given(choices, st.dictionaries(macs, choices, max_size=4))
def test_what_is_saved_is_loaded(tmp_path_factory, default, by_mac):
    file = PolicyFile(tmp_path_factory.mktemp("policy") / "policy.json")
    policy = Policy(default, by_mac)
    file.save(policy)
    assert file.load() == policy
    assert all(describe(choice) for choice in (default, *by_mac.values()))


def test_without_a_file_everybody_boots_the_current_image(tmp_path):
    assert PolicyFile(tmp_path / "none.json").load().decide(client("02:00:00:00:00:01")) == DuckImage()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "default": {"kind": "duck"}, "by_mac": {}}', '{"version": 1}',
     '{"version": 1, "default": {"kind": "floppy"}, "by_mac": {}}',
     '{"version": 1, "default": {"kind": "duck", "surprise": 1}, "by_mac": {}}'],
)  # fmt: skip
def test_a_file_that_is_none_is_said_to_be_so(tmp_path, text):
    (tmp_path / "policy.json").write_text(text)
    with pytest.raises(OperatorError, match=r"policy\.json"):
        PolicyFile(tmp_path / "policy.json").load()


def test_one_duck_is_changed_and_given_back():
    policy = Policy().changed(("02:00:00:00:00:01",), Memtest())
    assert policy.decide(client("02:00:00:00:00:01")) == Memtest()
    assert policy.decide(client("02:00:00:00:00:02")) == DuckImage()
    assert policy.changed(("02:00:00:00:00:01",), None) == Policy()


def client(mac: str) -> BootClient:
    return BootClient(mac, "duck", "10.21.1.101", "d1")
