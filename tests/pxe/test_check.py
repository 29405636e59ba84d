"""`pxe check` on real interfaces of a namespace, with a real second DHCP server in it."""

import json
import subprocess
import sys
import time

import pytest

from duckfleet.pxe.check import check_interface, judge_offers, secure_boot
from duckfleet.pxe.clients import BootDomain
from duckfleet.pxe.dhcp_probe import Offer, other_servers
from duckfleet.pxe.events import BootEvent

DOMAIN = BootDomain("d1", "d1", "10.21.1.1", 24, "10.21.1.255", 7021, 7022)
DOMAIN_4 = BootDomain("d4", "d4", "10.21.4.1", 24, "10.21.4.255", 7021, 7022)


def check(network, service, *options: str) -> tuple[int, dict[str, tuple[str, str]]]:
    duckctl = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(service.state)]
    command = [
        "ip",
        "netns",
        "exec",
        network.host,
        *duckctl,
        "--site",
        str(service.site_path),
        "pxe",
        "check",
        "--json",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, {r["subject"]: (r["verdict"], r["finding"]) for r in json.loads(done.stdout)}


def test_a_healthy_host(network, service):
    code, found = check(network, service)
    assert code == 0, found
    assert found["d1: interface d1"] == ("ok", "up, 10.21.1.1")
    assert found["d3: other DHCP servers"] == ("ok", "none answers")
    assert found["duck image"][0] == "ok"
    # The service itself holds its ports; that is said, and is no failure.
    assert found["port 67/UDP"][0] == "warning"
    assert "pxe serve" in found["port 7023/TCP"][1]


def test_another_dhcp_server_on_the_wire_is_found(network, service, tmp_path):
    command = ["dnsmasq", "--keep-in-foreground", "--port=0", "--interface=c2", "--bind-dynamic", "--log-facility=-"]
    command += [f"--dhcp-leasefile={tmp_path}/leases", f"--pid-file={tmp_path}/pid", "--conf-file=/dev/null"]
    command += ["--dhcp-range=10.21.2.60,10.21.2.70,1h", "--user=root", "--no-ping"]
    rogue = subprocess.Popen(["ip", "netns", "exec", network.clients, *command], stderr=subprocess.PIPE, text=True)
    try:
        while "started" not in rogue.stderr.readline():
            assert rogue.poll() is None
        (offer,) = network.inside(network.host, lambda: other_servers("d2", 2.0))
    finally:
        rogue.terminate()
        rogue.wait(10)
        rogue.stderr.close()
    assert offer.server == "10.21.2.240"
    assert offer.address.startswith("10.21.2.6")


@pytest.mark.parametrize(
    ("mode", "servers", "verdict"),
    [
        ("dhcp", [], "ok"),
        ("dhcp", ["10.21.1.254"], "failure"),
        ("dhcp", ["10.21.1.1"], "ok"),  # ourselves
        ("proxy", [], "failure"),
        ("proxy", ["10.21.1.1"], "failure"),
        ("proxy", ["10.21.1.254"], "ok"),
    ],
)
def test_what_another_server_means(mode, servers, verdict):
    offers = [Offer(server, "10.21.1.9", "") for server in servers]
    result = judge_offers(DOMAIN, mode, offers)
    assert result.verdict == verdict
    assert all(server in result.finding for server in servers if server != DOMAIN.host_address)


@pytest.mark.parametrize(
    ("changes", "undo", "says"),
    [
        (["link set d4 down"], ["link set d4 up"], "is down: ip link set d4 up"),
        (["address del 10.21.4.1/24 dev d4"], [], "ip address add 10.21.4.1/24 dev d4"),
        (["link set d4 down", "link set d4 name x4"], ["link set x4 name d4", "link set d4 up"], "does not exist"),
    ],
)
def test_an_interface_that_is_not_ready(network, changes, undo, says):
    def ip(words: str, check: bool = True) -> None:
        subprocess.run(["ip", "-n", network.host, *words.split()], check=check, capture_output=True)

    for words in changes:
        ip(words)
    try:
        results = network.inside(network.host, lambda: check_interface(DOMAIN_4))
    finally:
        for words in undo:
            ip(words)
        ip("address add 10.21.4.1/24 dev d4", check=False)
    assert "failure" in [result.verdict for result in results]
    assert any(says in result.finding for result in results)
    assert [result.verdict for result in network.inside(network.host, lambda: check_interface(DOMAIN_4))] == ["ok"]


def test_a_cable_that_is_not_plugged_in_is_a_warning(network):
    subprocess.run(["ip", "-n", network.clients, "link", "set", "c4", "down"], check=True)
    deadline = time.monotonic() + 10
    try:
        while True:  # the kernel passes the news on within a second
            results = network.inside(network.host, lambda: check_interface(DOMAIN_4))
            if results[0].verdict != "ok" or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    finally:
        subprocess.run(["ip", "-n", network.clients, "link", "set", "c4", "up"], check=True)
    assert [(result.verdict, "carrier" in result.finding) for result in results] == [("warning", True)]


def event(kind: str, mac: str, **evidence: str) -> BootEvent:
    return BootEvent(time.time(), kind, mac, mac, "d1", evidence)


def test_secure_boot_is_suspected_where_the_loader_was_fetched_and_never_ran():
    past = [
        event("tftp_sent", "a", file="snponly.efi"),
        event("tftp_sent", "b", file="snponly.efi"),
        event("dhcp_request", "b", stage="ipxe"),
        event("tftp_sent", "c", file="undionly.kpxe"),
        event("file_sent", "d", file="snponly.efi"),  # by HTTP boot
    ]
    found = list(secure_boot(past))
    assert [(result.verdict, result.subject) for result in found] == [("warning", "a"), ("warning", "d")]
    assert [result.verdict for result in secure_boot(past[1:3])] == ["ok"]
