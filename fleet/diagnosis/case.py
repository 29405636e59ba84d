"""A look with what follows from it for several rules at once: the history, what port and plug tell of a silent box."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from duckfleet.fleet.diagnosis.findings import Evidence
from duckfleet.fleet.diagnosis.history import AFTER_WAKE, BY_ITSELF, History, history_of
from duckfleet.fleet.diagnosis.look import Look
from duckfleet.fleet.diagnosis.observation import Observed
from duckfleet.fleet.diagnosis.sources.around.outside import Plug, SwitchPort
from duckfleet.fleet.diagnosis.sources.link.ip_link import Interface

STANDBY_LINK_MBPS = 100  # a card that waits for a packet keeps its link at 10 or 100 Mbit/s
CLOCKS_DISAGREE = timedelta(seconds=10)  # of switch, plug and host

# A box of this class: off but fed, stopped before its firmware's prompt (no memory), and anything that runs.
DEAD_BELOW_W, STANDBY_BELOW_W, STALLED_BELOW_W = 0.3, 2.5, 5.5

PORT_DOWN, PORT_STANDBY, PORT_ROSE, PORT_UNMOVED, PORT_UP = "down", "standby", "rose", "unmoved", "up"
PLUG_DEAD, PLUG_RELAY_OFF, PLUG_STANDBY = "dead", "relay off", "standby"
PLUG_STALLED, PLUG_ROSE, PLUG_STEADY = "stalled", "rose", "steady"


@dataclass(frozen=True)
class Case:
    look: Look

    @cached_property
    def history(self) -> History:
        return history_of(self.look.events.value or (), self.look.now)

    # -- from outside ----------------------------------------------------------------------------------

    @property
    def port(self) -> SwitchPort | None:
        return self.look.outside.value.switch if self.look.outside.value else None

    @property
    def plug(self) -> Plug | None:
        return self.look.outside.value.plug if self.look.outside.value else None

    def answer(self, question: str) -> str:
        """What a person answered, or nothing."""
        return self.look.outside.value.person.get(question, "") if self.look.outside.value else ""

    @cached_property
    def port_story(self) -> str:
        """What the switch port tells of a silent box, one of PORT_*; empty: nothing."""
        port = self.port
        if port is None or port.up is None:
            return ""
        if not port.up:
            return PORT_DOWN
        expected = self.look.baseline.expect.link_mbps or 2500
        if port.speed_mbps is not None and port.speed_mbps <= STANDBY_LINK_MBPS < expected:
            return PORT_STANDBY
        if port.since is not None:
            woken, silent = self.history.woken_at, self.history.silent_since
            if woken is not None and port.since >= woken - CLOCKS_DISAGREE:
                return PORT_ROSE
            if silent is not None and port.since < silent:
                return PORT_UNMOVED
        return PORT_UP

    @cached_property
    def plug_story(self) -> str:
        """What the plug tells of a silent box, one of PLUG_*; empty: nothing."""
        plug = self.plug
        if plug is None:
            return ""
        if plug.relay_on is False:
            return PLUG_RELAY_OFF
        if plug.watts is None:
            return ""
        if plug.watts < DEAD_BELOW_W:
            return PLUG_DEAD
        if plug.watts < STANDBY_BELOW_W:
            return PLUG_STANDBY
        if self._was_off_by_plug(plug):
            return PLUG_STALLED if plug.watts < STALLED_BELOW_W else PLUG_ROSE
        return PLUG_STEADY

    def _was_off_by_plug(self, plug: Plug) -> bool:
        """Whether it was off before it drew this; where the plug did not watch, a wake is taken for a start."""
        watched_from = min((at for at, _ in plug.history), default=None)
        woken = self.history.woken_at
        if self.history.standing == AFTER_WAKE and (
            watched_from is None or (woken is not None and watched_from > woken)
        ):
            return True
        return any(watts < STANDBY_BELOW_W for at, watts in plug.history if at <= (plug.at or at))

    @property
    def fell_silent_by_itself(self) -> bool:
        return self.history.standing == BY_ITSELF

    # -- the duck's own interface ----------------------------------------------------------------------

    @cached_property
    def interface(self) -> Interface | None:
        """By MAC; an interface may be named anew."""
        interfaces = self.look.interfaces.value or ()
        by_mac = [one for one in interfaces if one.mac and one.mac == self.look.duck.mac]
        by_name = [one for one in interfaces if one.name == self.look.duck.interface]
        return next(iter(by_mac or by_name), None)

    # -- evidence --------------------------------------------------------------------------------------

    def says(self, observed: Observed[object], text: str, at: datetime | None = None) -> Evidence:
        return Evidence(observed.source, at or observed.at, text)

    def tells(self, text: str, at: datetime | None = None) -> Evidence:
        """Evidence of the duck's history."""
        return Evidence("history", at or self.look.now, text)

    def seen_outside(self, source: str, text: str, at: datetime | None = None) -> Evidence:
        return Evidence(source, at or self.look.now, text)
