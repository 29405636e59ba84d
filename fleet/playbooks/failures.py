"""Ansible's failures in our words: what is wrong on the machine, and the next step. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

MAX_CHARS = 600
MAX_CHARS_READ = 100_000  # of what a machine says; the rest of a flood tells nothing more

_KNOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed", re.I),
        "another ssh host key than the pinned one. If the box was set up anew, remove its line from known_hosts in the "
        "keys' folder, then `duckctl probe --ssh` pins the new one",
    ),
    (
        re.compile(r"No \S+ host key is known|Host key verification failed", re.I),
        "its ssh host key is not pinned yet; `duckctl probe --ssh` pins it at first sight",
    ),
    (
        re.compile(r"Permission denied \(|Too many authentication failures", re.I),
        "it does not take the fleet's ssh key: put ssh_ed25519.pub of the keys' folder into root's authorized_keys "
        "there, or boot it from our image",
    ),
    (
        re.compile(r"Connection refused", re.I),
        "no ssh server listens there: `apt install openssh-server` on it, or boot it from our image",
    ),
    (
        re.compile(r"timed out|No route to host|Network is unreachable|Host is down", re.I),
        "it does not answer ssh: `duckctl status` says what is known of it, `duckctl wake` starts it",
    ),
    (
        re.compile(
            r"Connection (?:closed|reset) by|Broken pipe|Shared connection to \S+ closed|"
            r"Timeout, server \S+ not responding",
            re.I,
        ),
        "the connection was lost in the middle of a task: look at it with `duckctl probe`, then run the playbook again",
    ),
    (
        re.compile(
            r"/(?:usr/bin/)?(?:env: .)?python3?\S*: (?:not found|No such file)|No python interpreters found|"
            r"interpreter .{0,80}not found",
            re.I,
        ),
        "it has no Python, which this playbook needs: `apt install python3` there, or `duckctl image build --python`",
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded", re.I),
        "its disk is full: make room there, then run the playbook again",
    ),
)
"""What ssh, the shell and Ansible say, and what we say. The first that matches holds."""


def explain(result: Mapping[str, Any], task: str) -> str:
    """Of the result of a task that failed, or of a machine that could not be reached."""
    said = _said(result)
    for pattern, words in _KNOWN:
        if pattern.search(said):
            return words
    return f"{task or 'a task'}: {said[:MAX_CHARS] or 'it said nothing'}"


def _said(result: Mapping[str, Any]) -> str:
    """The words of a result, without what is the same in all of them."""
    parts: list[str] = []
    results = result.get("results")
    items = results if isinstance(results, list) else []
    items = [item for item in items if isinstance(item, Mapping) and item.get("failed")]
    for source in items[:3] or [result]:
        for key in ("msg", "stderr", "module_stderr", "stdout", "module_stdout"):
            text = " ".join(str(source.get(key) or "")[:MAX_CHARS_READ].split())
            if text and not _GENERAL.fullmatch(text) and text not in parts:
                parts.append(text)
    return "; ".join(parts)


_GENERAL = re.compile(
    r"non-zero return code|MODULE FAILURE.*|One or more items failed|"
    r"Failed to connect to the host via ssh: ?|Task failed: (?:Module|Action) failed: ?(?:non-zero return code)?",
    re.I | re.S,
)
