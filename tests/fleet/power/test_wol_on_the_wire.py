"""Magic packets as they really leave: captured on the far side of each segment, on a host without a default route."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duckfleet.fleet.power.magic import ETHERTYPE
from tests.fleet.network import Network, is_possible, network, taps

pytestmark = pytest.mark.skipif(not is_possible(), reason="network namespaces need root")

MAC = "00:e0:4c:0a:0b:0c"
PAYLOAD = bytes.fromhex("ff" * 6 + "00e04c0a0b0c" * 16)
PASSWORD = bytes.fromhex("010203040506")

# Wakes one duck of domain d1 or d2 by the driver and the options given.
SEND = """
import sys
from duckfleet.fleet.power.drivers import driver_for
from duckfleet.inventory.errors import DuckfleetError
from duckfleet.inventory.site import Domain, Duck, PowerSource
driver, interface, host, broadcast, secure_on, repeats = sys.argv[1:]
domain = Domain("d", interface, host, 24, (), broadcast, 1500, 9, 1, 2)
duck = Duck("00:e0:4c:0a:0b:0c", "ann", host + "01", "d", secure_on=secure_on)
try:
    print(driver_for(PowerSource(driver, driver), repeats=int(repeats)).on(duck, domain))
except DuckfleetError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network(2) as made:
        yield made


def send(
    net: Network,
    driver: str,
    segment: int,
    *,
    broadcast: str = "",
    secure_on: str = "",
    repeats: int = 3,
    interface: str = "",
    host_address: str = "",
) -> str:
    where = net.segments[segment]
    done = net.python(
        SEND,
        driver,
        interface or where.interface,
        host_address or where.host_address,
        broadcast or where.host_address.rsplit(".", 1)[0] + ".255",
        secure_on,
        str(repeats),
    )
    return done.stdout if done.returncode == 0 else done.stderr


def udp(frame: bytes) -> tuple[bytes, str, str, int, bytes]:
    """(destination MAC, source, destination, destination port, payload) of an IPv4/UDP frame without options."""
    assert frame[12:14] == b"\x08\x00"
    assert frame[14] == 0x45
    assert frame[23] == 17
    length = int.from_bytes(frame[38:40], "big")
    source, target = (".".join(map(str, frame[at : at + 4])) for at in (26, 30))
    return frame[:6], source, target, int.from_bytes(frame[36:38], "big"), frame[42 : 34 + length]


def of_type(frames: list[bytes], ethertype: int) -> list[bytes]:
    return [frame for frame in frames if frame[12:14] == ethertype.to_bytes(2, "big")]


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("limited", [False, True], ids=["directed", "255.255.255.255"])
@pytest.mark.parametrize("secure_on", ["", "01:02:03:04:05:06"], ids=["plain", "secure_on"])
def test_udp_leaves_through_the_domains_interface_and_no_other(
    net: Network, segment: int, limited: bool, secure_on: str
) -> None:
    with taps(*net.segments) as captured:
        assert "'bound_to_interface': True" in send(
            net, "wol", segment, broadcast="255.255.255.255" if limited else "", secure_on=secure_on
        )
    host = net.segments[segment].host_address
    target = "255.255.255.255" if limited else host.rsplit(".", 1)[0] + ".255"
    wanted = (b"\xff" * 6, host, target, 9, PAYLOAD + (PASSWORD if secure_on else b""))
    assert [udp(frame) for frame in of_type(captured[segment], 0x0800)] == [wanted] * 3
    assert of_type(captured[1 - segment], 0x0800) == []


@pytest.mark.parametrize("segment", [0, 1])
@pytest.mark.parametrize("secure_on", ["", "0102.0304.0506"], ids=["plain", "secure_on"])
def test_raw_frames_leave_through_the_domains_interface_and_no_other(
    net: Network, segment: int, secure_on: str
) -> None:
    with taps(*net.segments) as captured:
        assert "0x0842" in send(net, "wol-raw", segment, secure_on=secure_on, repeats=2)
    frames = of_type(captured[segment], ETHERTYPE)
    assert [frame[:6] for frame in frames] == [b"\xff" * 6] * 2
    assert [frame[14:] for frame in frames] == [PAYLOAD + (PASSWORD if secure_on else b"")] * 2
    assert of_type(captured[1 - segment], ETHERTYPE) == []


def test_what_stands_in_the_way_is_said_with_domain_and_cure(net: Network) -> None:
    assert "no such interface" in send(net, "wol", 0, interface="nosuch0")
    assert "ip address add 10.99.0.1/24" in send(net, "wol", 0, host_address="10.99.0.1")
    assert "nosuch0" in send(net, "wol-raw", 0, interface="nosuch0")


def test_an_interface_that_is_down_is_said(net: Network) -> None:
    interface = net.segments[1].interface
    net.on_host("ip", "link", "set", interface, "down")
    try:
        assert f"ip link set {interface} up" in send(net, "wol", 1)
    finally:
        net.on_host("ip", "link", "set", interface, "up")
