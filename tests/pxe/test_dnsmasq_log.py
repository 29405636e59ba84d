"""dnsmasq's log as events: lines that dnsmasq 2.90 wrote, and lines that nobody should write."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from duckfleet.pxe.clients import BootClient, BootDomain, BootSite
from duckfleet.pxe.dnsmasq_log import DnsmasqLog
from duckfleet.pxe.events import KINDS

SITE = BootSite(
    (BootDomain("d1", "br-d1", "10.21.1.1", 24, "10.21.1.255", 7021, 7022),),
    (BootClient("52:54:00:15:01:02", "duck102", "10.21.1.102", "d1"),),
)
CAPTURE = (Path(__file__).parent / "golden" / "dnsmasq-uefi-boot.log").read_text().splitlines()


def read(lines):
    log = DnsmasqLog(SITE)
    return [event for number, line in enumerate(lines) for event in log.read(line, float(number))]


def short(events):
    return [(e.kind, e.client, e.evidence.get("stage") or e.evidence.get("file") or "") for e in events]


def test_a_boot_by_uefi():
    assert short(read(CAPTURE)) == [
        ("dhcp_request", "duck102", "firmware"),
        ("dhcp_lease", "duck102", "firmware"),
        ("tftp_sent", "duck102", "snponly.efi"),
        ("tftp_sent", "duck102", "snponly.efi"),
        ("dhcp_request", "duck102", "ipxe"),
        ("dhcp_lease", "duck102", "ipxe"),
        ("dhcp_request", "duck102", "system"),
        ("dhcp_lease", "duck102", "system"),
    ]


def test_what_is_known_of_each_event():
    events = read(CAPTURE)
    assert events[0].mac == "52:54:00:15:01:02"
    assert events[0].domain == "d1"
    assert events[0].evidence["firmware"] == "efi"
    assert events[0].evidence["vendor_class"] == "PXEClient:Arch:00007:UNDI:003000"
    assert events[1].evidence["address"] == "10.21.1.102"


def test_option_175_alone_says_that_it_is_ipxe():
    lines = [
        "dnsmasq-dhcp[1]: 7 available DHCP subnet: 10.21.1.0/255.255.255.0",
        "dnsmasq-dhcp[1]: 7 vendor class: PXEClient:Arch:00000:UNDI:002001",
        "dnsmasq-dhcp[1]: 7 DHCPDISCOVER(br-d1) 52:54:00:15:01:02 ",
        "dnsmasq-dhcp[1]: 7 tags: domain-1, known, ipxe, bios, br-d1",
    ]
    assert short(read(lines)) == [("dhcp_request", "duck102", "ipxe")]


def test_those_who_get_no_answer():
    lines = [
        "dnsmasq-dhcp[1]: 8 DHCPDISCOVER(br-d1) 52:54:00:15:01:09 ignored",
        "dnsmasq-dhcp[1]: 9 DHCPDISCOVER(br-d1) 52:54:00:15:01:02 no address available",
        "dnsmasq-dhcp[1]: 9 DHCPDISCOVER(br-d1) 00:00:00:00:00:00 ignored",
    ]
    events = read(lines)
    assert [(e.kind, e.mac, e.evidence["reason"]) for e in events] == [
        ("dhcp_ignored", "52:54:00:15:01:09", "ignored"),
        ("dhcp_ignored", "52:54:00:15:01:02", "no address available"),
        ("dhcp_ignored", "", "ignored"),
    ]
    assert events[2].evidence["claimed_mac"] == "00:00:00:00:00:00"


def test_two_machines_whose_lines_are_mixed():
    lines = [
        "dnsmasq-dhcp[1]: 1 vendor class: PXEClient:Arch:00000:UNDI:002001",
        "dnsmasq-dhcp[1]: 2 vendor class: udhcp 1.35.0",
        "dnsmasq-dhcp[1]: 1 DHCPDISCOVER(br-d1) 52:54:00:15:01:02 ",
        "dnsmasq-dhcp[1]: 2 DHCPDISCOVER(br-d1) 52:54:00:15:01:03 ",
        "dnsmasq-dhcp[1]: 2 tags: known, br-d1",
        "dnsmasq-dhcp[1]: 1 tags: bios, known, br-d1",
    ]
    assert [(e.mac, e.evidence["stage"]) for e in read(lines)] == [
        ("52:54:00:15:01:03", "system"),
        ("52:54:00:15:01:02", "firmware"),
    ]


def test_transfers_that_fail():
    lines = [
        "dnsmasq-tftp[1]: error 8 User aborted the transfer received from 10.21.1.102",  # it asked for the size
        "dnsmasq-tftp[1]: failed sending /run/x/tftp/snponly.efi to 10.21.1.102",
        "dnsmasq-tftp[1]: file /run/x/tftp/pxelinux.0 not found for 10.21.1.102",
        "dnsmasq-tftp[1]: file /run/x/tftp/pxelinux.0 not found for 10.21.1.77",
    ]
    events = read(lines)
    assert [(e.kind, e.client) for e in events] == [("tftp_failed", "duck102")] * 2 + [("tftp_failed", "")]
    assert events[0].evidence["reason"] == "gave up sending snponly.efi"
    assert events[2].evidence["address"] == "10.21.1.77"


@given(st.lists(st.one_of(st.sampled_from(CAPTURE), st.text(max_size=80).map("dnsmasq-dhcp[1]: 5 {}".format))))
def test_no_line_breaks_it(lines):
    for event in read(lines):
        assert event.kind in KINDS


def test_memory_is_bounded():
    log = DnsmasqLog(SITE)
    for xid in range(10_000):
        log.read(f"dnsmasq-dhcp[1]: {xid} vendor class: x", 0.0)
    assert len(log._transactions) < 100
