"""What the duck's history amounts to: is it silent, since when, after what, and what was learnt on the way. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from duckfleet.fleet.diagnosis.sources.around.events import HistoryEvent
from duckfleet.fleet.diagnosis.sources.raw import moment, words

ANSWERING = ("up", "probing", "healthy", "degraded", "placed", "serving")
STARTING = ("waking", "dhcp", "loading")
START_LIMIT = timedelta(seconds=180)  # the longest that a starting state may last (lifecycle)
WHOLE_START_LIMIT = timedelta(seconds=360)  # all of them together
NO_SPACE_ERRNOS = (28, 122)  # ENOSPC, EDQUOT
OURS = ("PXEClient", "HTTPClient", "iPXE", "udhcp")  # vendor classes of firmware and of our image

BY_ITSELF, AFTER_WAKE, NOT_SILENT, OFF, STILL_STARTING, NEVER_SEEN = (
    "went silent by itself",
    "did not come after a wake",
    "answers",
    "is off, and nobody asked it to start",
    "is starting",
    "was never seen",
)

WRONG_BY_A_DAY_S = 86400.0
BATTERY_REPLACED = re.compile(
    r"(?:batter\w*|cell|CR ?2032).*(?:replac|new|chang)|(?:replac|new|chang)\w*.*(?:batter|CR ?2032)", re.I
)


@dataclass(frozen=True, slots=True)
class Note:
    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class RtcSeen:
    """An earlier reading of the RTC at boot. `was_cold`: mains were lost since the boot before it."""

    at: datetime
    offset_s: float
    was_cold: bool


@dataclass(frozen=True, slots=True)
class MainsLoss:
    at: datetime
    until: datetime | None

    @property
    def duration_s(self) -> float | None:
        return (self.until - self.at).total_seconds() if self.until else None


@dataclass(frozen=True)
class History:
    standing: str  # one of the six above
    silent_since: datetime | None = None
    woken_at: datetime | None = None  # the first packet of the last attempt
    off_at: datetime | None = None  # ordered off before that attempt
    last_answer_at: datetime | None = None
    going: Mapping[str, Any] | None = None  # evidence of the moment it fell silent
    mains_losses: tuple[MainsLoss, ...] = ()
    rtc_seen: tuple[RtcSeen, ...] = ()
    notes: tuple[Note, ...] = ()
    complaints: tuple[Note, ...] = ()  # reasons of degraded probes
    timed_out_in: str = ""  # the state in which the last start was given up
    last_error: str = ""  # what the last try to reach it said then
    daemon_losses: tuple[datetime, ...] = ()  # refused connections that came back later
    refused_for_space_at: datetime | None = None
    refused_path: str = ""
    failed_wakes: int = 0  # since it was last ordered off
    images_sent: int = 0  # since the first packet of the last attempt
    asked_as_other_system: str = ""

    @property
    def is_silent(self) -> bool:
        return self.standing in (BY_ITSELF, AFTER_WAKE)

    @property
    def mains_lost_since_answer(self) -> MainsLoss | None:
        after = [loss for loss in self.mains_losses if self.last_answer_at is None or loss.at >= self.last_answer_at]
        return after[-1] if after else None

    @property
    def battery_replaced_at(self) -> datetime | None:
        return max((note.at for note in self.notes if BATTERY_REPLACED.search(note.text)), default=None)

    def notes_since_answer(self) -> tuple[Note, ...]:
        """Notes that can explain a silence: written since it was last switched off, or shortly before."""
        if self.silent_since is None:
            return ()
        begin = (self.off_at or self.silent_since) - timedelta(days=1)
        return tuple(note for note in self.notes if note.at >= begin)

    def cold_readings(self) -> tuple[RtcSeen, ...]:
        """Those of the present battery that say something about it: taken after a loss of mains."""
        since = self.battery_replaced_at
        return tuple(seen for seen in self.rtc_seen if seen.was_cold and (since is None or seen.at > since))


def history_of(events: tuple[HistoryEvent, ...], now: datetime) -> History:
    """Walk the events once."""
    walk = _Walk()
    for event in events:
        walk.take(event)
    return walk.result(now)


class _Walk:
    def __init__(self) -> None:
        self.state = "unknown"
        self.state_at: datetime | None = None
        self.last_answer_at: datetime | None = None
        self.off_at: datetime | None = None
        self.woken_at: datetime | None = None
        self.silent_since: datetime | None = None
        self.by_itself = False
        self.going: Mapping[str, Any] | None = None
        self.mains: list[MainsLoss] = []
        self.rtc: list[RtcSeen] = []
        self.notes: list[Note] = []
        self.complaints: list[Note] = []
        self.timed_out_in = self.last_error = ""
        self.daemon_losses: list[datetime] = []
        self.refused_at: datetime | None = None
        self.refused_path = ""
        self.failed_wakes = self.images_sent = 0
        self.other_system = ""
        self.mains_seen_by_rtc = 0

    def take(self, event: HistoryEvent) -> None:
        before, self.state = self.state, event.state
        if event.event != "note" or before != event.state:
            self.state_at = event.at
        if before == "waking" and event.state in ("dhcp", "loading", *ANSWERING):
            self.failed_wakes = 0  # the packet did it; after a time-out it was somebody's hand
        if event.event == "note":
            self._note(event)
        elif event.event == "rtc_read":
            self._rtc(event)
        elif event.event == "power_cut":
            self._power_cut(event)
        elif event.event in ("wake_sent", "reboot_sent"):
            self._wake(event, before)
        elif event.event == "dhcp_seen":
            vendor = words(event.evidence.get("vendor_class"))
            self.other_system = vendor if vendor and not vendor.startswith(OURS) else ""
        elif event.event == "image_sent":
            self.images_sent += 1
        elif event.event == "went_silent":
            self.by_itself, self.silent_since, self.going = (
                before in ANSWERING or before == "unknown",
                event.at,
                event.evidence,
            )
        elif event.event == "timed_out" and event.state == "lost":
            self.silent_since = self.silent_since or event.at
            self.timed_out_in = words(event.evidence.get("in_state"))
            self.last_error = words(event.evidence.get("last_answer"))
            self.failed_wakes += self.timed_out_in == "waking"
        elif event.event == "probe_degraded":
            reasons = event.evidence.get("reasons")
            if isinstance(reasons, list):
                self.complaints += [Note(event.at, words(reason)) for reason in reasons]
        if event.state in ANSWERING and event.event not in ("note", "rtc_read", "probe_unknown"):
            self._answered(event)

    def _answered(self, event: HistoryEvent) -> None:
        if event.event == "answered" and "refused" in words((self.going or {}).get("error")):
            self.daemon_losses.append(event.at)
        self.last_answer_at = event.at
        self.timed_out_in = self.last_error = ""
        self.silent_since = self.going = self.woken_at = None
        self.by_itself, self.other_system = False, ""

    def _note(self, event: HistoryEvent) -> None:
        self.notes.append(Note(event.at, words(event.evidence.get("text"))))
        refused = re.search(r"no space left|disk quota exceeded", words(event.evidence.get("text")), re.IGNORECASE)
        if event.evidence.get("errno") in NO_SPACE_ERRNOS or refused:
            self.refused_at, self.refused_path = event.at, words(event.evidence.get("path"))

    def _rtc(self, event: HistoryEvent) -> None:
        rtc, host = moment(event.evidence.get("rtc")), moment(event.evidence.get("host"))
        if rtc is None or host is None or event.evidence.get("before_set") is False:
            return
        cold = len(self.mains) > self.mains_seen_by_rtc
        self.mains_seen_by_rtc = len(self.mains)
        self.rtc.append(RtcSeen(event.at, (rtc - host).total_seconds(), cold))

    def _power_cut(self, event: HistoryEvent) -> None:
        if event.evidence.get("ac") == "lost":
            self.mains.append(MainsLoss(event.at, moment(event.evidence.get("until"))))
        self.off_at, self.silent_since, self.woken_at, self.failed_wakes = event.at, None, None, 0
        self.by_itself = False

    def _wake(self, event: HistoryEvent, before: str) -> None:
        if before not in STARTING:
            self.woken_at, self.images_sent = event.at, 0
        if self.silent_since is None:
            self.silent_since = event.at
        self.timed_out_in = self.last_error = ""

    def result(self, now: datetime) -> History:
        overdue = (self.state_at is not None and now - self.state_at > START_LIMIT) or (
            self.woken_at is not None and now - self.woken_at > WHOLE_START_LIMIT
        )
        if self.state in ANSWERING:
            standing = NOT_SILENT
        elif self.state == "lost" or (self.state in STARTING and overdue):
            standing = BY_ITSELF if self.by_itself else AFTER_WAKE
        elif self.state in STARTING:
            standing = STILL_STARTING
        else:
            standing = OFF if self.state == "off" else NEVER_SEEN
        return History(
            standing,
            self.silent_since,
            self.woken_at,
            self.off_at,
            self.last_answer_at,
            self.going,
            tuple(self.mains),
            tuple(self.rtc),
            tuple(self.notes),
            tuple(self.complaints),
            self.timed_out_in,
            self.last_error,
            tuple(self.daemon_losses),
            self.refused_at,
            self.refused_path,
            self.failed_wakes,
            self.images_sent,
            self.other_system,
        )
