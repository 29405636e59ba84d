"""iPXE's search for an IPv6 router is answered at once; held against scapy's reading of the same packets."""

import socket
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet6 import ICMPv6ND_RA, ICMPv6ND_RS, ICMPv6NDOptSrcLLAddr, IPv6
from scapy.layers.l2 import Ether

from duckfleet.pxe.router_advert import Solicitor, advertisement, link_local, solicitor

macs = st.binary(min_size=6, max_size=6)


def solicitation(mac: str, hop_limit: int = 255) -> bytes:
    source = "fe80::2dc:ff:fe00:1"
    frame = Ether(src=mac, dst="33:33:00:00:00:02") / IPv6(src=source, dst="ff02::2", hlim=hop_limit)
    return bytes(frame / ICMPv6ND_RS() / ICMPv6NDOptSrcLLAddr(lladdr=mac))


@given(macs, macs, st.one_of(st.just(bytes(16)), macs.map(link_local)))
def test_the_answer_is_a_valid_advertisement_of_nothing(asks, answers, address):
    frame = Ether(advertisement(Solicitor(asks, address), answers))
    if any(address):
        assert bytes.fromhex(frame.dst.replace(":", "")) == asks
        assert socket.inet_pton(socket.AF_INET6, frame[IPv6].dst) == address
    else:
        assert (frame.dst, frame[IPv6].dst) == ("33:33:00:00:00:01", "ff02::1")
    assert frame[IPv6].hlim == 255
    said = frame[ICMPv6ND_RA]
    assert (said.routerlifetime, said.M, said.O) == (0, 0, 0)
    told = said.cksum
    del said.cksum
    assert Ether(bytes(frame))[ICMPv6ND_RA].cksum == told


def test_the_address_is_the_one_of_the_standard():
    assert link_local(bytes.fromhex("34567890abcd")).hex(":", 2) == "fe80:0000:0000:0000:3656:78ff:fe90:abcd"


def test_only_solicitations_from_this_link_count():
    mac = "02:dc:00:00:01:01"
    found = solicitor(solicitation(mac))
    assert (found.mac, found.address) == (bytes.fromhex(mac.replace(":", "")), link_local(b"\x00\xdc\x00\x00\x00\x01"))
    assert solicitor(solicitation(mac, hop_limit=64)) is None
    assert solicitor(advertisement(found, found.mac)) is None


@given(st.binary(max_size=120))
def test_rubbish_is_nothing(frame):
    assert solicitor(frame) is None or frame[12:14] == b"\x86\xdd"


@pytest.mark.parametrize("known", [True, False])
def test_the_running_service_answers_ducks_only(network, service, known):
    mac = service.mac(3, 2) if known else "02:dc:ff:00:00:09"

    def ask() -> bool:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x86DD)) as raw:
            raw.bind(("c3", 0))
            raw.send(solicitation(mac))
            deadline = time.monotonic() + (10 if known else 0.7)
            while (left := deadline - time.monotonic()) > 0:
                raw.settimeout(left)
                try:
                    frame = Ether(raw.recv(2048))
                except TimeoutError:
                    break
                if ICMPv6ND_RA in frame and frame.dst == mac:
                    return True
        return False

    assert network.inside(network.clients, ask) is known
