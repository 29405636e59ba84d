"""Boot events into the store: each a line of the log, and those that say how far a duck came a change of its state."""

from __future__ import annotations

import time
from collections.abc import Sequence

from duckfleet.fleet import lifecycle
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Store
from duckfleet.inventory.store.records import Event
from duckfleet.pxe.events import KINDS, BootEvent

REPEAT_S = 20.0
"""Firmware asks for an address several times in a row; within this time that is one line of the log."""


class BootRecorder:
    """A listener of the boot service. Not for several threads at once."""

    def __init__(self, site: Site, store: Store, actor: str = "pxe") -> None:
        self._ducks = {duck.mac: duck for duck in site.ducks}
        self._store = store
        self._actor = actor
        self._last_told: dict[tuple[str, str, str], float] = {}

    def __call__(self, event: BootEvent) -> None:
        if self._is_repeat(event):
            return
        duck = self._ducks.get(event.mac)
        evidence = {"domain": event.domain, **event.evidence}
        if duck is None:
            self._store.log(event.kind, {"mac": event.mac, **evidence}, actor=self._actor)
            return
        step = lifecycle_event(event)
        if step is None or not self._take(duck, step, {"because": event.kind, **evidence}):
            self._store.log(event.kind, evidence, duck, actor=self._actor)

    def _take(self, duck: Duck, step: str, evidence: dict[str, object]) -> bool:
        try:
            self._store.transition(duck, step, evidence, lifecycle.next_state, actor=self._actor)
        except lifecycle.UnlistedTransition:
            return False  # a duck that is up fetches its image once more, for instance
        return True

    def _is_repeat(self, event: BootEvent) -> bool:
        if event.kind not in ("dhcp_request", "dhcp_ignored", "dhcp_lease", "http_refused"):
            return False
        key = (event.mac, event.kind, str(event.evidence.get("stage") or event.evidence.get("reason") or ""))
        now = time.monotonic()
        for old in [old for old, told in self._last_told.items() if now - told > REPEAT_S]:
            del self._last_told[old]
        if key in self._last_told:
            return True
        self._last_told[key] = now
        return False


_SYSTEMS = ("vmlinuz", "kernel", "grub.pxe", "grub.efi", "memtest.bin", "memtest.efi")


def lifecycle_event(event: BootEvent) -> str | None:
    """What a boot event means for the duck's state; None: it is a line of the log only.

    The request of the system itself changes nothing: by then its image was sent, and it is loading.
    """
    if event.kind == "dhcp_request" and event.evidence.get("stage") in ("firmware", "ipxe"):
        return "dhcp_seen"
    if event.kind == "file_sent" and event.evidence.get("file") in _SYSTEMS:
        return "image_sent"
    return None


def past_boot_events(events: Sequence[Event]) -> list[BootEvent]:
    """Boot events back from the log, for checks that look at what happened."""
    found = []
    for event in events:
        kind = str(event.evidence.get("because", event.kind))
        if kind in KINDS:
            domain = str(event.evidence.get("domain", ""))
            mac = event.mac or str(event.evidence.get("mac", ""))
            found.append(BootEvent(event.at_s, kind, mac, event.duck, domain, event.evidence))
    return found
