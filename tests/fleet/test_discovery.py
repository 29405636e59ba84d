"""Boxes are heard by their DHCP requests and ARP, each in its own domain, and proposed as ducks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from duckfleet.fleet.discovery import Sighting, merge, propose
from duckfleet.inventory.sitefile import load_site, parse_site
from tests.fleet.network import Network, is_possible, network, run_in

SITE = """
[[domains]]
name = "d1"
interface = "{0}"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-103]"

[[domains]]
name = "d2"
interface = "{1}"
host_address = "10.21.2.1"
nodes = "10.21.2.[101-108]"

[[ducks]]
mac = "00:e0:4c:00:00:01"
address = "10.21.1.101"
name = "ann"
"""


def site(text: str = SITE.format("a", "b")):
    return parse_site(text, Path("site.toml"))


def seen(mac: int, domain: str = "d1", source: str = "dhcp", address: str = "", **more: str) -> Sighting:
    return Sighting(f"00:e0:4c:00:00:{mac:02x}", domain, source, address, **more)


def test_known_ducks_are_not_proposed_and_unknown_ones_get_free_addresses() -> None:
    proposed = propose(site(), [seen(1), seen(2), seen(3), seen(4, "d2")])
    assert [(duck.mac[-2:], duck.address) for duck, _ in proposed] == [
        ("02", "10.21.1.102"),
        ("03", "10.21.1.103"),
        ("04", "10.21.2.101"),
    ]


def test_a_box_keeps_the_address_it_has_where_that_is_free() -> None:
    proposed = propose(site(), [seen(2, source="arp", address="10.21.1.103"), seen(3), seen(4)])
    assert [duck.address for duck, _ in proposed] == ["10.21.1.103", "10.21.1.102"]  # and none is left for the third


def test_an_address_elsewhere_or_taken_is_not_kept() -> None:
    for address in ("10.21.1.101", "192.168.1.4", "10.21.2.101"):
        ((duck, _),) = propose(site(), [seen(2, address=address)])
        assert duck.address == "10.21.1.102"


def test_one_box_heard_often_is_one_and_dhcp_tells_more_than_arp() -> None:
    (only,) = merge(
        [seen(2, source="arp", address="10.21.1.103"), seen(2, hostname="box", vendor_class="PXEClient"), seen(2)]
    )
    assert (only.source, only.hostname, only.address) == ("dhcp", "box", "10.21.1.103")
    ((duck, _),) = propose(site(), [only])
    assert duck.notes == "box PXEClient"


# What boxes on the far side of a segment send: a DHCP discover of a firmware, an ARP request, noise, and rubbish.
SPEAK = """
import sys
from scapy.all import *
iface, mac, address = sys.argv[1:]
conf.verb = 0
broadcast = Ether(src=mac, dst="ff:ff:ff:ff:ff:ff")
to_server = broadcast / IP(src="0.0.0.0", dst="255.255.255.255") / UDP(sport=68, dport=67)
options = [("message-type", "discover"), ("vendor_class_id", b"PXEClient:Arch:00007\\xff"), "end"]
discover = to_server / BOOTP(chaddr=bytes.fromhex(mac.replace(":", "")) + bytes(10), xid=7) / DHCP(options=options)
arp_mac = mac[:-2] + "f" + mac[-1]
arp = Ether(src=arp_mac, dst="ff:ff:ff:ff:ff:ff") / ARP(op=1, hwsrc=arp_mac, psrc=address, pdst="10.21.1.1")
for frame in (to_server / b"x", to_server / BOOTP(chaddr=b"\\xff" * 16), discover, arp, discover):
    sendp(frame, iface=iface)
"""


@pytest.fixture
def net() -> Network:
    with network(2) as made:
        yield made


@pytest.mark.skipif(not is_possible(), reason="network namespaces need root")
def test_discover_hears_each_domain_and_appends_what_it_heard(net: Network, tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text(SITE.format(*(segment.interface for segment in net.segments)))
    options = ["--state", str(tmp_path), "--site", str(file), "discover", "--seconds", "120", "--add", "--json"]
    listener = subprocess.Popen(
        ["ip", "netns", "exec", net.host, sys.executable, "-m", "duckfleet.fleet.cli", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert listener.stderr is not None
    assert listener.stderr.readline().startswith("listening")
    for segment, mac, address in (
        (net.segments[0], "00:e0:4c:00:00:01", "10.21.1.103"),
        (net.segments[1], "00:e0:4c:00:00:05", "10.21.2.107"),
    ):
        spoken = run_in(segment.namespace, sys.executable, "-c", SPEAK, segment.far_interface, mac, address)
        assert spoken.returncode == 0, spoken.stderr
    said: list[str] = []
    while sum(" 00:e0:" in line for line in said) < 4:  # the far side's own kernel may speak as well
        line = listener.stderr.readline()
        assert line, f"it ended before all were heard: {said}"
        said.append(line)
    assert "heard 00:e0:4c:00:00:01 in d1 by dhcp: duck ann\n" in said
    listener.send_signal(signal.SIGINT)
    out, err = listener.communicate(timeout=60)
    assert listener.returncode == 0, err
    heard = {(item["mac"], item["domain"], item["source"]) for item in json.loads(out)["heard"]}
    assert {item for item in heard if item[0].startswith("00:e0:")} == {
        ("00:e0:4c:00:00:01", "d1", "dhcp"),
        ("00:e0:4c:00:00:f1", "d1", "arp"),
        ("00:e0:4c:00:00:05", "d2", "dhcp"),
        ("00:e0:4c:00:00:f5", "d2", "arp"),
    }
    ducks = {duck.mac: duck for duck in load_site(file).ducks}
    assert ducks["00:e0:4c:00:00:f1"].address == "10.21.1.103"
    assert ducks["00:e0:4c:00:00:f5"].address == "10.21.2.107"
    assert ducks["00:e0:4c:00:00:05"].domain == "d2"
    assert "PXEClient:Arch:00007" in ducks["00:e0:4c:00:00:05"].notes
    assert ducks["00:e0:4c:00:00:01"].name == "ann"
