"""The catalogue agrees with the playbooks themselves, and `--set` takes what it says and nothing else."""

from __future__ import annotations

import pytest
import yaml

from duckfleet.fleet.playbooks.catalogue import Playbook, catalogue, find, folder
from duckfleet.inventory.errors import OperatorError

GUARDS = {"ducks": "duck_guard", "host": "host_guard"}
GROUPS = {"ducks": "ducks", "host": "fleet_host"}


@pytest.mark.parametrize("playbook", catalogue().values(), ids=lambda playbook: playbook.name)
def test_a_play_runs_where_the_catalogue_says_and_is_guarded_first(playbook: Playbook) -> None:
    for play in yaml.safe_load(playbook.path.read_text()):
        assert play["hosts"] == GROUPS[playbook.runs_on]
        assert play["roles"][0] == GUARDS[playbook.runs_on]
        assert "tasks" not in play and "pre_tasks" not in play


@pytest.mark.parametrize("playbook", catalogue().values(), ids=lambda playbook: playbook.name)
def test_what_may_be_set_is_a_default_of_a_role_of_it(playbook: Playbook) -> None:
    defaults: dict[str, object] = {}
    for play in yaml.safe_load(playbook.path.read_text()):
        for role in play["roles"]:
            path = folder() / "roles" / role / "defaults/main.yml"
            defaults.update(yaml.safe_load(path.read_text()) if path.exists() else {})
    for setting in playbook.settings:
        assert defaults[setting.name] == setting.default


def test_every_playbook_and_role_is_used() -> None:
    there = {path.name for path in folder().glob("*.yml")}
    assert there == {playbook.file for playbook in catalogue().values()}
    used = {
        role
        for playbook in catalogue().values()
        for play in yaml.safe_load(playbook.path.read_text())
        for role in play["roles"]
    }
    assert {path.name for path in (folder() / "roles").iterdir()} == used


def test_only_modules_that_come_with_ansible_are_used() -> None:
    keywords = {"name", "register", "when", "loop", "loop_control", "vars", "changed_when", "failed_when", "notify",
                "check_mode", "environment", "timeout", "no_log", "block", "become", "listen"}  # fmt: skip
    for path in (folder() / "roles").glob("*/*/main.yml"):
        if path.parent.name in ("defaults", "vars"):
            continue
        for task in yaml.safe_load(path.read_text()):
            for inner in task.get("block", [task]):
                modules = set(inner) - keywords
                assert len(modules) == 1 and all(name.startswith("ansible.builtin.") for name in modules), (path, inner)


def test_settings_are_read_by_type_and_refused_by_name() -> None:
    burn_in = find("burn-in")
    assert burn_in.values(["seconds=60", "arguments=-f /x=y"]) == {"seconds": 60, "mib": 0, "arguments": "-f /x=y"}
    for wrong, words in (
        ("second=60", "lets you set seconds=3600"),
        ("seconds", "lets you set"),
        ("seconds=1h", "write a whole number"),
        ("mib=-1", "write a whole number"),
    ):
        with pytest.raises(OperatorError, match=words):
            burn_in.values([wrong])
    with pytest.raises(OperatorError, match="no playbook 'burnin': there are"):
        find("burnin")
