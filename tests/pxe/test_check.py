"""`pxe check` on real interfaces of a namespace, with a real second DHCP server in it."""

import json
import subprocess
import sys
import time

import pytest

from duckfleet.pxe.check import secure_boot
from duckfleet.pxe.events import BootEvent


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


def test_proxy_mode_without_a_server_to_stand_beside(network, service):
    code, found = check(network, service, "--mode", "proxy")
    assert code == 1
    assert found["d2: other DHCP servers"][0] == "failure"


def test_another_dhcp_server_on_the_wire(network, service, tmp_path):
    command = ["dnsmasq", "--keep-in-foreground", "--port=0", "--interface=c2", "--bind-dynamic", "--log-facility=-"]
    command += [f"--dhcp-leasefile={tmp_path}/leases", f"--pid-file={tmp_path}/pid", "--conf-file=/dev/null"]
    rogue = subprocess.Popen(
        ["ip", "netns", "exec", network.clients, *command, "--dhcp-range=10.21.2.60,10.21.2.70,1h", "--user=root"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        while "started" not in rogue.stderr.readline():
            assert rogue.poll() is None
        code, found = check(network, service)
        assert code == 1
        assert found["d2: other DHCP servers"][0] == "failure"
        assert "10.21.2.240" in found["d2: other DHCP servers"][1]
        assert found["d1: other DHCP servers"][0] == "ok"
        assert check(network, service, "--mode", "proxy")[1]["d2: other DHCP servers"][0] == "ok"
    finally:
        rogue.terminate()
        rogue.wait(10)
        rogue.stderr.close()


@pytest.mark.parametrize(
    ("change", "undo", "verdict", "says"),
    [
        ("link set d4 down", "link set d4 up", "failure", "is down: ip link set d4 up"),
        (
            "address del 10.21.4.1/24 dev d4",
            "address add 10.21.4.1/24 dev d4",
            "failure",
            "ip address add 10.21.4.1/24",
        ),
        ("link set d4 name other", "link set other name d4", "failure", "does not exist"),
    ],
)
def test_an_interface_that_is_not_ready(network, service, change, undo, verdict, says):
    def ip(words: str) -> None:
        subprocess.run(["ip", "-n", network.host, *words.split()], check=True)

    if "name" in change:
        ip("link set d4 down")
    ip(change)
    try:
        code, found = check(network, service)
    finally:
        ip(undo)
        ip("link set d4 up")
        subprocess.run(["ip", "-n", network.host, "address", "add", "10.21.4.1/24", "dev", "d4"], capture_output=True)
    assert code == 1
    assert found["d4: interface d4"][0] == verdict
    assert says in found["d4: interface d4"][1]


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
