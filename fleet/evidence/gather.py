"""Ask all sources about ducks, several at a time, and put the answers together with what people said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from duckfleet.fleet.diagnosis import Observed
from duckfleet.fleet.diagnosis.sources.around import outside
from duckfleet.fleet.diagnosis.sources.around.outside import Outside
from duckfleet.fleet.evidence.sources import EvidenceError, look_at
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store.records import Event

AT_ONCE = 16
SOURCE = "outside"
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    "power_led": ("on", "off"),
    "link_led": ("on", "off"),
    "button": ("starts", "nothing"),
    "cable": ("seated", "loose"),
    "moved_to_other_port": ("works", "same"),
    "swapped_cable": ("works", "same"),
    "screen": ("press_f1", "no_boot_device", "os_desktop", "kernel_panic", "nothing"),
    "key_pressed": ("starts", "nothing"),
    "fan": ("spinning", "still"),
    "beeps": ("none", "1", "2", "3", "many"),
}
"""What a person may be asked about a box, and the answers that the tables know."""
TOLD = "told"
"""The kind of an event that holds a person's answer: evidence `asked` and `answer`."""


def outside_of(
    site: Site, ducks: Sequence[Duck], events: Mapping[str, Sequence[Event]]
) -> dict[str, Observed[Outside]]:
    """By MAC. A source that failed is said in the reason where no other told anything; `events` are each duck's own."""
    asked = [(duck, source) for duck in ducks for source in site.evidence]
    parts: dict[str, dict[str, Any]] = {duck.mac: {} for duck in ducks}
    failures: dict[str, list[str]] = {duck.mac: [] for duck in ducks}
    if asked:
        with ThreadPoolExecutor(min(AT_ONCE, len(asked)), thread_name_prefix="evidence") as pool:
            answers = pool.map(lambda pair: _look(site, *pair), asked)
            for (duck, _), answer in zip(asked, answers, strict=True):
                if isinstance(answer, EvidenceError):
                    failures[duck.mac].append(str(answer))
                else:
                    parts[duck.mac].update(answer)
    found = {}
    for duck in ducks:
        person = answers_of(events.get(duck.mac, ()))
        fields = {**parts[duck.mac], **({"person": person} if person else {})}
        now = datetime.now(UTC)
        if fields:
            found[duck.mac] = Observed(SOURCE, now, outside.from_json(fields))
        elif failures[duck.mac]:
            found[duck.mac] = Observed(SOURCE, now, None, "; ".join(failures[duck.mac]))
        else:
            found[duck.mac] = Observed.absent(SOURCE)
    return found


def _look(site: Site, duck: Duck, source: Any) -> Mapping[str, Any] | EvidenceError:
    try:
        return look_at(source, duck, site.domain(duck.domain))
    except EvidenceError as error:
        return error


def answers_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What people told since the duck was last well: an older answer is about another fault."""
    answers: list[dict[str, Any]] = []
    for event in events:
        if event.kind == "probe_passed":
            answers.clear()
        elif event.kind == TOLD:
            answers.append({"asked": event.evidence.get("asked"), "answer": event.evidence.get("answer")})
    return answers
