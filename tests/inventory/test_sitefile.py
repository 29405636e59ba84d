"""The site file: what a good one means, and that every complaint names file, line and value."""

from pathlib import Path

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.inventory.site import Site
from duckfleet.inventory.sitefile import SiteFileError, load_site, parse_site
from duckfleet.inventory.sitewriter import duck_block, site_text

GOOD = """\
[fleet]
name = "shelf"
control_port = 7100

[expect]
ram_gib = 32
cpu = "N100"

[power.plug]
driver = "http"
on = "http://{outlet}.plugs.lan/relay/0?turn=on"
off = "http://{outlet}.plugs.lan/relay/0?turn=off"

[[domains]]
name = "d1"
interface = "enp1s0f0"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-108]"

[[domains]]
name = "d2"
interface = "enp1s0f1"
host_address = "10.21.2.1"
nodes = "10.21.2.[101-108]"
mtu = 9000

[[ducks]]
mac = "00-E0-4C-00-00-02"
address = "10.21.1.102"
name = "bob"
rack = "r1u2"
power = "plug"
outlet = "p2"
secure_on = "0102.0304.0506"
expect = { ram_gib = 16 }

[[ducks]]
mac = "00:e0:4c:00:00:01"
address = "10.21.1.101"

[[ducks]]
mac = "00:e0:4c:00:00:03"
address = "10.21.2.101"
name = "ann"
"""


def parse(text: str) -> Site:
    return parse_site(text, Path("site.toml"))


def complaints(text: str) -> tuple[str, ...]:
    with pytest.raises(SiteFileError) as caught:
        parse(text)
    return caught.value.complaints


def line(text: str, start: str) -> int:
    return next(i for i, content in enumerate(text.splitlines(), 1) if content.startswith(start))


def test_a_good_file_says_what_it_should() -> None:
    site = parse(GOOD)
    assert site.name == "shelf"
    assert [duck.address for duck in site.ducks] == ["10.21.1.101", "10.21.1.102", "10.21.2.101"]
    bob = site.ducks[1]
    assert (bob.mac, bob.domain, bob.rack, bob.power) == ("00:e0:4c:00:00:02", "d1", "r1u2", "plug")
    assert bob.secure_on == "01:02:03:04:05:06"
    assert bob.expect.ram_bytes == 16 << 30
    assert bob.expect.cpu == "N100"
    assert site.ducks[0].name == "10.21.1.101"
    assert site.ducks[0].expect.ram_bytes == 32 << 30
    d2 = site.domain("d2")
    assert (d2.mtu, d2.broadcast, d2.control_port) == (9000, "10.21.2.255", 7100)
    assert d2.addresses[0] == "10.21.2.101"


BROKEN = [
    # what is replaced, by what, the line complained about, what the complaint says
    ('mac = "00:e0:4c:00:00:01"', 'mac = "00:e0:4c:00:00:02"', 'mac = "00:e0:4c:00:00:02"', "taken by duck 'bob'"),
    ('mac = "00:e0:4c:00:00:01"', 'mac = "00:00:00:00:00:00"', 'mac = "00:00', "all zero"),
    ('mac = "00:e0:4c:00:00:01"', 'mac = "ff:ff:ff:ff:ff:ff"', 'mac = "ff:ff', "broadcast"),
    ('mac = "00:e0:4c:00:00:01"', 'mac = "01:00:5e:00:00:01"', 'mac = "01:00', "multicast"),
    ('mac = "00:e0:4c:00:00:01"', "mac = 17", "mac = 17", "must be a text"),
    ('address = "10.21.1.101"', 'address = "10.21.1.102"', 'address = "10.21.1.102"', "taken by"),
    ('address = "10.21.1.101"', 'address = "10.21.3.101"', 'address = "10.21.3.101"', "not a node of any domain"),
    ('address = "10.21.1.101"', 'address = "10.21.1.1"', 'address = "10.21.1.1"', "not a node of any domain"),
    ('rack = "r1u2"', 'rak = "r1u2"', "rak =", "did you mean 'rack'"),
    ('name = "ann"', 'name = "bob"', 'name = "bob"', "taken by duck"),
    ('name = "ann"', 'name = "@d1"', 'name = "@d1"', "plain name"),
    ('name = "ann"', 'power = "pulg"', 'power = "pulg"', "no such power source"),
    ('host_address = "10.21.2.1"', 'host_address = "10.21.1.2"', 'nodes = "10.21.2', "outside 10.21.1.0/24"),
    ('nodes = "10.21.2.[101-108]"', 'nodes = "10.21.2.[1-8]"', 'nodes = "10.21.2.[1-8]"', "host's own address"),
    ('nodes = "10.21.2.[101-108]"', 'nodes = "10.21.2.[8-1]"', 'nodes = "10.21.2.[8-1]"', "not a node set"),
    ('name = "d2"', 'name = "d1"', 'name = "d1"', "name of another domain"),
    ('interface = "enp1s0f1"', 'interface = "a-name-of-16-chr"', "interface = ", "name of a network interface"),
    ('interface = "enp1s0f1"', 'interface = "two words"', "interface = ", "name of a network interface"),
    ('interface = "enp1s0f1"', 'interface = ".."', "interface = ", "name of a network interface"),
    ("mtu = 9000", "mtu = 90000", "mtu = 90000", "between 576 and 9216"),
    ("mtu = 9000", "mtu = true", "mtu = true", "must be a whole number"),
    ("ram_gib = 32", "ram_gib = -1", "ram_gib = -1", "between"),
    ('driver = "http"', 'driver = "telepathy"', 'driver = "telepathy"', "must be one of"),
    ('off = "http://{outlet}.', 'off = "http://{plug}.', "off =", "cannot be filled in"),
    ('off = "http://{outlet}.', 'off = "http://{mac.__class__}.', "off =", "{mac.__class__} is not known"),
    ('off = "http://{outlet}.', 'off = "http://{outlet', "off =", "cannot be filled in: "),
    ('off = "http://{outlet}.', 'off = "http://', "off =", "the same for every duck"),
    ('off = "http://{outlet}.', 'off = "sudo -n /sbin/poweroff {outlet}', "off =", "act on this host"),
    ('[fleet]\nname = "shelf"', "[fleet]\nname = 3", "name = 3", "must be a text"),
]


@pytest.mark.parametrize(("old", "new", "where", "reason"), BROKEN, ids=[case[3] for case in BROKEN])
def test_a_complaint_names_file_line_and_value(old: str, new: str, where: str, reason: str) -> None:
    assert old in GOOD
    text = GOOD.replace(old, new)
    found = complaints(text)
    numbers = [i for i, content in enumerate(text.splitlines(), 1) if content.startswith(where)]
    assert len(found) == 1, found
    assert any(found[0].startswith(f"site.toml:{number}: ") for number in numbers), found[0]
    assert reason in found[0]


def test_overlapping_domains_are_refused() -> None:
    text = GOOD.replace("10.21.2.1", "10.21.1.2").replace("10.21.2.[101", "10.21.1.[101")
    assert any("overlaps 10.21.1.0/24 of domain 'd1'" in text for text in complaints(text))


def test_domains_that_would_hear_each_other_are_refused() -> None:
    shared = 'broadcast = "10.255.255.255"\n'
    text = GOOD.replace("[[domains]]\n", "[[domains]]\n" + shared)
    assert any("same broadcast address and data_port" in text for text in complaints(text))


def test_every_complaint_is_made_at_once() -> None:
    text = GOOD.replace('mac = "00:e0:4c:00:00:01"', 'mac = "0"').replace("mtu = 9000", "mtu = 1")
    assert len(complaints(text)) == 2


def test_bad_toml_and_a_missing_file_are_said_as_such(tmp_path: Path) -> None:
    assert "line 1" in complaints("[fleet\n")[0]
    with pytest.raises(SiteFileError, match="duckctl init"):
        load_site(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(SiteFileError, match="cannot be read"):
        load_site(tmp_path / "latin.toml")


def test_ducks_are_selected_by_any_of_their_names() -> None:
    site = parse(GOOD)
    assert [duck.name for duck in site.select(["ann"])] == ["ann"]
    assert [duck.name for duck in site.select(["00E04C000002"])] == ["bob"]
    assert [duck.address for duck in site.select(["10.21.1.[101-102]"])] == ["10.21.1.101", "10.21.1.102"]
    assert [duck.name for duck in site.select(["@d2", "ann"])] == ["ann"]
    assert len(site.select([])) == 3
    for unknown in ("nobody", "@d9", "10.21.1.[101-103]"):
        with pytest.raises(OperatorError, match="no duck"):
            site.select([unknown])


def test_what_is_written_reads_back_the_same() -> None:
    site = parse(GOOD)
    plain = [duck for duck in site.ducks if duck.power == "wol"]
    text = site_text("shelf", site.domains, plain, header="two\nlines")
    again = parse(text)
    assert again.domains == site.domains
    assert [(duck.mac, duck.address, duck.name) for duck in again.ducks] == [
        (duck.mac, duck.address, duck.name) for duck in plain
    ]
    appended = text + "\n" + duck_block(site.ducks[1], "seen today").replace('power = "plug"\n', "")
    assert len(parse(appended).ducks) == 3
