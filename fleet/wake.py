"""Wake ducks, one after the other because of their inrush, and follow each until it is up or its state times out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duckfleet.fleet import lifecycle
from duckfleet.fleet.errors import PowerError, PowerUnsupported
from duckfleet.fleet.power.drivers import power_of
from duckfleet.fleet.power.person import Ask, nobody
from duckfleet.fleet.reach import identify, on_all
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.inventory.store import Store
from duckfleet.runtime.errors import DuckLost
from duckfleet.runtime.wire import FleetKeys, WireFormatError

POLL_S = 0.1
STORE_POLL_S = 0.5
REACH_TIMEOUT_S = 1.0


@dataclass(frozen=True, slots=True)
class WakeResult:
    """How far a duck came. `ok`: it is up, or (without --wait) its packet left."""

    duck: Duck
    state: str
    ok: bool
    detail: str
    took_s: float


Report = Callable[[WakeResult], None]


class Waker:
    """One wake of some ducks of a site."""

    def __init__(
        self,
        site: Site,
        store: Store,
        keys: FleetKeys | None,
        *,
        ask: Ask = nobody,
        report: Report = lambda _result: None,
        timeout_s: dict[str, float | None] | None = None,
    ) -> None:
        self.site = site
        self.store = store
        self.keys = keys
        self.ask = ask
        self.report = report
        self.timeout_s = lifecycle.TIMEOUT_S if timeout_s is None else timeout_s
        self._stop = threading.Event()

    def wake(self, ducks: Sequence[Duck], *, wait: bool) -> list[WakeResult]:
        """Results in the order of `ducks`. Ducks that answer already get no packet."""
        began = time.monotonic()
        results: dict[str, WakeResult] = {}
        asleep = []
        for duck, answer in on_all(ducks, lambda duck: identify(self.site, duck, self.keys, REACH_TIMEOUT_S)):
            if isinstance(answer, DuckLost):
                asleep.append(duck)
                self._silent(duck, answer)
            elif isinstance(answer, MachineError):  # something is awake there, and a packet would change nothing
                self.store.log("wake_refused", {"error": str(answer)}, duck)
                results[duck.mac] = self._done(duck, False, str(answer), began)
            else:
                self._answered(duck, answer.instance)
                results[duck.mac] = self._done(duck, True, "answers already", began)
        asleep.sort(key=ducks.index)
        starting = self._start(asleep, results, began, wait=wait)
        if wait:
            try:
                for duck, result in on_all(starting, self._follow):
                    if isinstance(result, MachineError):
                        result = self._done(duck, False, str(result), began)
                    results[duck.mac] = result
            finally:
                self._stop.set()
        return [results[duck.mac] for duck in ducks]

    def _start(self, asleep: Sequence[Duck], results: dict[str, WakeResult], began: float, *, wait: bool) -> list[Duck]:
        started = []
        for index, duck in enumerate(asleep):
            if index:
                time.sleep(self.site.start.stagger_s)
            try:
                evidence = power_of(self.site, duck, ask=self.ask).on(duck, self.site.domain(duck.domain))
            except (PowerError, PowerUnsupported) as error:
                self.store.log("power_failed", {"error": str(error)}, duck)
                results[duck.mac] = self._done(duck, False, str(error), began)
                continue
            self.store.transition(duck, "wake_sent", evidence, lifecycle.next_state, restart=True)
            started.append(duck)
            if not wait:
                how = "magic packet sent" if evidence["driver"].startswith("wol") else f"switched on ({duck.power})"
                results[duck.mac] = self._done(duck, True, how, began)
        return started

    def _follow(self, duck: Duck) -> WakeResult:
        began = time.monotonic()
        last_packet = began
        last_look = 0.0
        refusal = ""
        while not self._stop.is_set():
            try:
                instance = identify(self.site, duck, self.keys, REACH_TIMEOUT_S).instance
            except (MachineError, WireFormatError) as error:
                refusal = str(error)
            else:
                self._answered(duck, instance)
                return self._done(duck, True, f"answers after {time.monotonic() - began:.1f} s", began)
            now = time.monotonic()
            if now - last_look >= STORE_POLL_S:
                last_look = now
                lost = self._overdue(duck, began, refusal)
                if lost is not None:
                    return lost
            if now - last_packet >= self.site.start.retry_s and self._repeatable(duck):
                last_packet = now
                self._repeat(duck)
            self._stop.wait(POLL_S)
        return self._done(duck, False, "given up", began)

    def _overdue(self, duck: Duck, began: float, refusal: str) -> WakeResult | None:
        row = self.store.ducks()[duck.mac]
        limit_s = self.timeout_s[row.state]
        if row.state == "lost":
            return self._done(duck, False, "was given up by another duckctl", began)
        if limit_s is None or time.time() - row.confirmed_s <= limit_s:
            return None
        evidence = {"in_state": row.state, "since_s": row.since_s, "limit_s": limit_s, "last_answer": refusal}
        self.store.transition(duck, "timed_out", evidence, lifecycle.next_state)
        return self._done(duck, False, f"{_MISSING[row.state]} in {limit_s:g} s", began)

    def _repeatable(self, duck: Duck) -> bool:
        """A packet to a box that is on its way does nothing; another call to a smart plug might cut its power."""
        return (
            self.site.power_source(duck.power).driver in ("wol", "wol-raw")
            and self.store.ducks()[duck.mac].state == "waking"
        )

    def _repeat(self, duck: Duck) -> None:
        try:
            evidence = power_of(self.site, duck).on(duck, self.site.domain(duck.domain))
        except PowerError as error:
            evidence = {"error": str(error)}
        self.store.log("wake_repeated", evidence, duck)

    def _silent(self, duck: Duck, error: DuckLost) -> None:
        """A duck that was believed up is not: say so before it is woken."""
        if self.store.ducks()[duck.mac].state in lifecycle.ANSWERING:
            self.store.transition(duck, "went_silent", {"error": str(error)}, lifecycle.next_state)

    def _answered(self, duck: Duck, instance: int) -> None:
        row = self.store.ducks()[duck.mac]
        if lifecycle.next_state(row.state, "answered") != row.state:
            self.store.transition(
                duck, "answered", {"address": duck.address, "instance": f"{instance:016x}"}, lifecycle.next_state
            )

    def _done(self, duck: Duck, ok: bool, detail: str, began: float) -> WakeResult:
        state = self.store.ducks()[duck.mac].state
        result = WakeResult(duck, state, ok, detail, time.monotonic() - began)
        self.report(result)
        return result


_MISSING = {
    "waking": "no DHCP request and no answer on its control port",
    "dhcp": "asked for DHCP but fetched no boot file",
    "loading": "fetched its image but its duckd does not answer",
}
