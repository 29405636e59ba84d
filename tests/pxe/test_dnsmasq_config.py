"""The generated configuration: text that a person has read, that dnsmasq takes, and that no name can add to."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from duckfleet.inventory.errors import OperatorError
from duckfleet.pxe.clients import BootClient, BootDomain, BootSite
from duckfleet.pxe.dnsmasq_config import ServiceSettings, dnsmasq_config

GOLDEN = Path(__file__).parent / "golden"
SITE = BootSite(
    (
        BootDomain("d1", "enp1s0f0", "10.21.1.1", 24, "10.21.1.255", 7021, 7022),
        BootDomain("rack two", "enp1s0f1", "10.21.2.1", 24, "10.21.2.255", 7021, 7022),
    ),
    (
        BootClient("00:e0:4c:00:00:01", "duck1101", "10.21.1.101", "d1"),
        BootClient("00:e0:4c:00:00:02", "die Ente!", "10.21.2.101", "rack two"),
    ),
)
SETTINGS = ServiceSettings(Path("/run/duckfleet/pxe-0"))
VARIANTS = {
    "dhcp": SETTINGS,
    "discover": replace(SETTINGS, unknown="discover"),
    "proxy": replace(SETTINGS, mode="proxy", http_port=8080),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_text_is_the_one_that_was_read(variant):
    golden = GOLDEN / f"dnsmasq-{variant}.conf"
    assert dnsmasq_config(SITE, VARIANTS[variant]) == golden.read_text()


@pytest.mark.parametrize("variant", VARIANTS)
def test_dnsmasq_takes_it(variant, tmp_path):
    settings = replace(VARIANTS[variant], run_dir=tmp_path)
    settings.tftp_dir.mkdir()
    path = tmp_path / "dnsmasq.conf"
    path.write_text(dnsmasq_config(SITE, settings))
    done = subprocess.run(["dnsmasq", "--test", f"--conf-file={path}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["x,ignore", "a\ndhcp-script=/tmp/x", "#", "ünnötig", " ", "-", "a" * 80])
def test_no_name_of_a_duck_adds_to_the_configuration(name):
    plain = dnsmasq_config(SITE, SETTINGS).splitlines()
    odd = dnsmasq_config(BootSite(SITE.domains, (replace(SITE.clients[0], name=name), SITE.clients[1])), SETTINGS)
    changed = [(old, new) for old, new in zip(plain, odd.splitlines(), strict=True) if old != new]
    ((_, line),) = changed
    assert line.startswith("dhcp-host=00:e0:4c:00:00:01,id:*,10.21.1.101,")
    assert line.count(",") == 4


def test_no_name_of_a_domain_adds_to_the_configuration():
    plain = dnsmasq_config(SITE, SETTINGS).splitlines()
    site = BootSite((replace(SITE.domains[0], name="d\ndhcp-script=/tmp/x"), SITE.domains[1]), SITE.clients)
    changed = [new for old, new in zip(plain, dnsmasq_config(site, SETTINGS).splitlines(), strict=True) if old != new]
    assert [line[:1] for line in changed] == ["#"]


@pytest.mark.parametrize("interface", ["a b", "x,y", "e\n", "", "a" * 16])
def test_an_interface_that_dnsmasq_cannot_be_told_is_refused(interface):
    site = BootSite((replace(SITE.domains[0], interface=interface),), ())
    with pytest.raises(OperatorError, match="interface"):
        dnsmasq_config(site, SETTINGS)


@pytest.mark.parametrize("settings", [replace(SETTINGS, mode="relay"), replace(SETTINGS, unknown="welcome")])
def test_unknown_behaviour_is_refused(settings):
    with pytest.raises(OperatorError, match="one of"):
        dnsmasq_config(SITE, settings)


def test_discovery_needs_room(tmp_path):
    site = BootSite((replace(SITE.domains[0], prefix_len=26, broadcast="10.21.1.63"),), ())
    with pytest.raises(OperatorError, match="no room"):
        dnsmasq_config(site, VARIANTS["discover"])
