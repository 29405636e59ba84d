"""The catalogue of playbooks (`playbooks/catalogue.toml`): where each may run, and what may be set."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from duckfleet.inventory.errors import InternalError, OperatorError

DUCKS, HOST = "ducks", "host"
Value = int | str


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that `--set NAME=VALUE` may say. Its type is that of its default."""

    name: str
    default: Value
    about: str
    must_be_set: bool = False

    def read(self, text: str) -> Value:
        """Raises `OperatorError`."""
        if isinstance(self.default, int):
            if not text.isascii() or not text.isdigit() or len(text) > 15:
                raise OperatorError(f"--set {self.name}={text}: write a whole number, for instance {self.default}")
            return int(text)
        return text


@dataclass(frozen=True, slots=True)
class Playbook:
    """One playbook."""

    name: str
    file: str
    runs_on: str  # DUCKS or HOST, never both
    about: str
    is_drastic: bool  # asks before it takes all ducks
    configures: bool  # a second run changes nothing
    settings: tuple[Setting, ...]

    @property
    def is_for_host(self) -> bool:
        return self.runs_on == HOST

    @property
    def path(self) -> Path:
        return folder() / self.file

    def values(self, given: Sequence[str]) -> dict[str, Value]:
        """Every setting's value, from `NAME=VALUE` texts and the defaults. Raises `OperatorError`."""
        known = {setting.name: setting for setting in self.settings}
        values = {setting.name: setting.default for setting in self.settings}
        for text in given:
            name, equals, value = text.partition("=")
            if not equals or name not in known:
                what = ", ".join(f"{setting.name}={setting.default}" for setting in self.settings) or "nothing"
                raise OperatorError(f"--set {text}: playbook {self.name} lets you set {what}")
            values[name] = known[name].read(value)
        for setting in self.settings:
            if setting.must_be_set and not values[setting.name]:
                raise OperatorError(f"playbook {self.name} needs --set {setting.name}=…: {setting.about}")
        return values


def folder() -> Path:
    """Where the playbooks and roles lie."""
    return Path(str(files("duckfleet.playbooks") / "catalogue.toml")).parent


@cache
def catalogue() -> Mapping[str, Playbook]:
    """By name, in the file's order."""
    text = (folder() / "catalogue.toml").read_text(encoding="utf-8")
    return {name: _playbook(name, table) for name, table in tomllib.loads(text).items()}


def find(name: str) -> Playbook:
    """Raises `OperatorError` for a name that is none."""
    try:
        return catalogue()[name]
    except KeyError:
        raise OperatorError(f"no playbook {name!r}: there are {', '.join(catalogue())}") from None


def _playbook(name: str, table: Mapping[str, Any]) -> Playbook:
    try:
        settings = tuple(
            Setting(key, row["default"], row["about"], bool(row.get("must_be_set", False)))
            for key, row in table.get("settings", {}).items()
        )
        if table["runs_on"] not in (DUCKS, HOST):
            raise ValueError(f"runs on {table['runs_on']!r}")
        return Playbook(
            name,
            table["file"],
            table["runs_on"],
            table["about"],
            bool(table.get("is_drastic", False)),
            bool(table["configures"]),
            settings,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InternalError(f"catalogue.toml, playbook {name}: {error}") from error
