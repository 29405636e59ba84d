"""The site as Ansible's inventory, held against the real ansible-inventory; who is in it, and its ssh options."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from duckfleet.fleet.playbooks.inventory import Inventory, host_name, literal
from duckfleet.inventory.site import Duck
from duckfleet.inventory.sitefile import load_site

SITE = """
[[domains]]
name = "north rack"
interface = "enp1s0f0"
host_address = "10.21.1.1"
nodes = "10.21.1.[101-108]"

[[domains]]
name = "north-rack"
interface = "enp1s0f1"
host_address = "10.21.2.1"
nodes = "10.21.2.[101-108]"

[[ducks]]
mac = "00:e0:4c:00:00:01"
address = "10.21.1.101"
name = "ann"
rack = "A3"

[[ducks]]
mac = "00:e0:4c:00:00:02"
address = "10.21.1.102"
name = "bob:2"

[[ducks]]
mac = "00:e0:4c:00:00:03"
address = "10.21.2.101"

[[ducks]]
mac = "00:e0:4c:00:00:04"
address = "10.21.2.102"
name = "localhost"
"""


@pytest.fixture
def site_path(tmp_path: Path) -> Path:
    path = tmp_path / "with blank" / "duckfleet.toml"
    path.parent.mkdir()
    path.write_text(SITE)
    return path


def ansible_inventory(source: Path, *arguments: str) -> Any:
    program = Path(sys.executable).parent / "ansible-inventory"
    environment = {**os.environ, "ANSIBLE_CONFIG": os.devnull + ".cfg", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [program, "-i", source, *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    return json.loads(done.stdout)


def duckctl(state: Path, site: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "duckfleet.fleet.cli", "--state", str(state), "--site", str(site), "playbook"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ansible_takes_the_script_and_reads_what_the_site_says(tmp_path: Path, site_path: Path) -> None:
    script = tmp_path / "fleet.sh"
    duckctl(tmp_path / "state", site_path, "inventory", "--script", str(script))
    read = ansible_inventory(script, "--list")
    assert set(read["ducks"]["children"]) == {"domain_north_rack", "domain_north_rack_2"}
    assert read["domain_north_rack"]["hosts"] == ["ann", "10.21.1.102"]
    assert read["domain_north_rack_2"]["hosts"] == ["10.21.2.101", "10.21.2.102"]
    assert read["fleet_host"]["hosts"] == ["localhost"]
    ann = read["_meta"]["hostvars"]["ann"]
    assert (ann["ansible_host"], ann["duck_rack"], ann["duck_domain"]) == ("10.21.1.101", "A3", "north rack")
    assert ann["ansible_ssh_private_key_file"] == str(tmp_path / "state/keys/ssh_ed25519")
    assert read["_meta"]["hostvars"]["localhost"]["host_interfaces"] == ["enp1s0f0", "enp1s0f1"]
    assert read["_meta"]["hostvars"]["localhost"]["ansible_connection"] == "local"
    one = json.loads(duckctl(tmp_path / "state", site_path, "inventory", "--host", "ann"))
    assert one["duck_mac"] == "00:e0:4c:00:00:01"


def test_the_file_of_a_run_says_the_same_as_the_script(tmp_path: Path, site_path: Path) -> None:
    site = load_site(site_path)
    made = Inventory(site, site.ducks, tmp_path, "a-boot-id", "/usr/bin/python3")
    (tmp_path / "hosts.json").write_text(json.dumps(made.static()))
    (tmp_path / "dynamic.json").write_text(json.dumps(made.dynamic()))
    script = tmp_path / "dynamic.sh"
    script.write_text('#!/bin/sh\ncat "${0%.sh}.json"\n')
    script.chmod(0o755)
    assert ansible_inventory(tmp_path / "hosts.json", "--list") == ansible_inventory(script, "--list")


def test_a_run_knows_nobody_but_whom_it_is_for(tmp_path: Path, site_path: Path) -> None:
    site = load_site(site_path)
    for_ducks = Inventory(site, site.ducks[:1], tmp_path, "a-boot-id", "python", has_host=False)
    assert set(for_ducks.static()["all"]["children"]) == {"ducks"} and "fleet_host" not in for_ducks.dynamic()
    assert list(for_ducks.dynamic()["_meta"]["hostvars"]) == ["ann"] and for_ducks.variables_of("localhost") == {}
    for_host = Inventory(site, (), tmp_path, "a-boot-id", "python")
    assert set(for_host.static()["all"]["children"]) == {"fleet_host"}
    assert list(for_host.dynamic()["_meta"]["hostvars"]) == ["localhost"]


@pytest.mark.parametrize("name", ["localhost", "all", "bob [1:3]", "-x", "a b", "a,b", "{{ x }}", ""])
def test_names_that_ansible_would_read_otherwise_give_way_to_the_address(name: str) -> None:
    assert host_name(Duck("00:e0:4c:00:00:01", name, "10.21.1.101", "d1")) == "10.21.1.101"


def test_a_pinned_host_key_is_the_only_one_that_is_taken(tmp_path: Path, site_path: Path) -> None:
    """As ssh itself reads the options, with a blank in the path of the keys."""
    site = load_site(site_path)
    keys = tmp_path / "with blank"
    made = Inventory(site, site.ducks, keys, "a-boot-id", "python").ssh_variables
    import shlex

    words = shlex.split(made["ansible_ssh_common_args"])
    shown = subprocess.run(["ssh", "-G", *words, "10.21.1.101"], check=True, capture_output=True, text=True).stdout
    options = dict(line.split(" ", 1) for line in shown.splitlines() if " " in line)
    assert options["stricthostkeychecking"] == "true"
    assert options["userknownhostsfile"] == str(keys / "known_hosts")
    assert options["globalknownhostsfile"] == "/dev/null"
    assert options["identitiesonly"] == "yes" and options["passwordauthentication"] == "no"


SAYS = """
- hosts: fleet_host
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "{{ [duckfleet_site, host_interfaces, hostvars['ann'].duck_rack, hostvars['ann'].duck_domain, given] }}"
"""


@pytest.mark.parametrize("is_script", [False, True])
def test_no_word_of_the_site_file_or_of_a_setting_is_evaluated(tmp_path: Path, is_script: bool) -> None:
    wicked = "{{ lookup('pipe', 'touch " + str(tmp_path / "was-here") + "') }}"
    path = tmp_path / "duckfleet.toml"
    text = SITE.replace('"A3"', json.dumps(wicked)).replace('"north-rack"', '"{% if 1 %}x{# #}"')
    text = text.replace('"north rack"', '"{{ 7*7 }}"').replace('"enp1s0f0"', '"{{7*7}}"')
    path.write_text(f"[fleet]\nname = {json.dumps(wicked)}\n{text}")
    site = load_site(path)
    made = Inventory(site, site.ducks, tmp_path, "a-boot-id", sys.executable)
    source = tmp_path / "hosts.json"
    source.write_text(json.dumps(made.static()))
    if is_script:
        source = tmp_path / "fleet.sh"
        duckctl(tmp_path / "state", path, "inventory", "--script", str(source))
    (tmp_path / "says.yml").write_text(SAYS)
    (tmp_path / "given.json").write_text(json.dumps(literal({"given": ["{{ 7*7 }}", 7]})))
    program = Path(sys.executable).parent / "ansible-playbook"
    environment = {**os.environ, "ANSIBLE_CONFIG": os.devnull + ".cfg", "LC_ALL": "C.UTF-8"}
    arguments = ["-i", source, "-e", f"@{tmp_path / 'given.json'}", tmp_path / "says.yml"]
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout.partition("=> ")[2].partition("\n\n")[0])["msg"]
    assert said == [wicked, ["{{7*7}}", "enp1s0f1"], wicked, "{{ 7*7 }}", ["{{ 7*7 }}", 7]]
    assert not (tmp_path / "was-here").exists()
