"""Evidence from outside the box: switch port, smart plug, a person's answers. Each may be absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from duckfleet.fleet.diagnosis.sources.raw import json_object, moment, number, rows, table, whole, words


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """By SNMP. None: the switch does not tell."""

    name: str
    up: bool | None
    speed_mbps: int | None
    since: datetime | None
    admin_up: bool | None
    max_mbps: int | None
    in_errors: int | None
    out_discards: int | None
    mtu: int | None
    link_changes: int | None  # in the last hour
    reason: str  # why it is down, in the switch's words


@dataclass(frozen=True, slots=True)
class Plug:
    watts: float | None
    at: datetime | None
    relay_on: bool | None
    history: tuple[tuple[datetime, float], ...]  # oldest first
    neighbours_watts: tuple[float, ...]  # of like boxes under the same load


@dataclass(frozen=True, slots=True)
class Outside:
    switch: SwitchPort | None = None
    plug: Plug | None = None
    person: Mapping[str, str] = field(default_factory=dict)  # question -> answer, the last one


def parse(text: str) -> Outside:
    return from_json(json_object(text))


def from_json(fields: Mapping[str, Any]) -> Outside:
    switch, plug = table(fields, "switch"), table(fields, "plug")
    answers = {
        words(row.get("asked")): words(row.get("answer")).strip().lower()
        for row in rows(fields, "person")
        if isinstance(row, dict)
    }
    answers.pop("", None)
    return Outside(_switch(switch) if switch else None, _plug(plug) if plug else None, answers)


def _switch(fields: Mapping[str, Any]) -> SwitchPort:
    return SwitchPort(
        words(fields.get("port")),
        _boolean(fields.get("port_up")),
        whole(fields.get("speed_mbps")),
        moment(fields.get("since")),
        _boolean(fields.get("admin_up")),
        whole(fields.get("max_mbps")),
        whole(fields.get("in_errors")),
        whole(fields.get("out_discards")),
        whole(fields.get("mtu")),
        whole(fields.get("link_changes_last_hour")),
        words(fields.get("oper_reason")),
    )


def _plug(fields: Mapping[str, Any]) -> Plug:
    history = []
    for row in rows(fields, "history"):
        at, watts = (moment(row[0]), number(row[1])) if isinstance(row, list) and len(row) == 2 else (None, None)
        if at is not None and watts is not None:
            history.append((at, watts))
    neighbours = [watts for watts in map(number, rows(fields, "neighbours_under_load_watts")) if watts is not None]
    return Plug(
        number(fields.get("watts")),
        moment(fields.get("at")),
        {"on": True, "off": False}.get(words(fields.get("relay"))),
        tuple(sorted(history)),
        tuple(neighbours),
    )


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None
