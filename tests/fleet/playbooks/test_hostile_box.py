"""A box that answers with commands for a terminal, with templates, and without end."""

from __future__ import annotations

import pytest

from tests.fleet.network import is_possible
from tests.fleet.playbooks.conftest import MakeShelf
from tests.fleet.playbooks.debian_box import Plan

pytestmark = pytest.mark.skipif(not is_possible(), reason="network and mount namespaces need root")

HOSTILE = r"""
cat > usr/bin/stressapptest <<'END'
#!/bin/sh
printf '\033[2J\033]0;owned\007Hardware Error: miscompare {{ lookup("pipe", "false") }}\033[31m\n'
head -c 2000000 /dev/zero | tr '\0' x
printf '\nStats: Found 3 hardware incidents\nStatus: FAIL - test discovered HW problems {{ 7*7 }}\n'
exit 1
END
"""


def test_what_a_box_says_is_neither_obeyed_nor_evaluated_nor_kept_without_end(make_shelf: MakeShelf) -> None:
    with make_shelf(Plan(prepare=(HOSTILE,))) as shelf:
        done = shelf.duckctl("playbook", "run", "burn-in", "--set", "seconds=5", "--set", "mib=64")
        assert done.returncode == 3, done.stderr
        (event,) = shelf.events("burn_in")
        assert (event.evidence["result"], event.evidence["incidents"]) == ("errors", 3)
        assert event.evidence["lines"] and max(map(len, event.evidence["lines"])) <= 300
        shown = shelf.duckctl("playbook", "log", "last")
        output = shelf.duckctl("playbook", "log", "last", "--output")
        for text in (done.stdout, done.stderr, shown.stdout, output.stdout):
            assert "\x1b[2J" not in text and "\x1b]" not in text and "\x07" not in text
        assert "{{ lookup" in event.evidence["lines"][0]
