"""The lifecycle of a duck, as a table: (state, event) -> state, and how long each state may last. Pure.

Who writes which event: `wake` wake_sent; the boot service dhcp_seen and image_sent; whoever reaches the control
plane answered; `probe` probe_*; `place` placed; `serve` serve_started, serve_ended and rejoined; whoever misses an
answer went_silent; `off` and `reboot` power_cut and reboot_sent; the clock timed_out; holds quarantined and released.
"""

from __future__ import annotations

from collections.abc import Callable

from duckfleet.inventory.errors import InternalError

STATES = (
    "unknown",
    "off",
    "waking",
    "dhcp",
    "loading",
    "up",
    "probing",
    "healthy",
    "degraded",
    "quarantined",
    "placed",
    "serving",
    "lost",
)  # fmt: skip

STARTING = ("waking", "dhcp", "loading")
ANSWERING = ("up", "probing", "healthy", "degraded", "placed", "serving")
SILENT = ("unknown", "off", "lost")

TIMEOUT_S: dict[str, float | None] = {
    "unknown": None,  # states without a limit: nothing is expected to happen next
    "off": None,
    "waking": 120.0,  # from the magic packet to the first DHCP request: firmware self-test included
    "dhcp": 60.0,  # from the lease to the first boot file
    "loading": 180.0,  # from the boot file to an answering daemon
    "up": None,
    "probing": 300.0,
    "healthy": None,
    "degraded": None,
    "quarantined": None,
    "placed": None,
    "serving": 90.0,  # the server renews it; one that was killed does not
    "lost": None,
}


Decide = Callable[[str, str], str]


class UnlistedTransition(InternalError):
    """An event that cannot happen in this state."""


def _rows(states: tuple[str, ...], event: str, target: str | None = None) -> dict[tuple[str, str], str]:
    """Transitions of several states upon one event; without a target each state stays."""
    return {(state, event): target or state for state in states}


TABLE: dict[tuple[str, str], str] = {
    **_rows((*SILENT, *STARTING), "wake_sent", "waking"),
    # A box that asks for DHCP has just started, whatever it was before: it may have rebooted by itself.
    **_rows((*SILENT, *STARTING, *ANSWERING), "dhcp_seen", "dhcp"),
    **_rows((*SILENT, *STARTING), "image_sent", "loading"),
    **_rows((*SILENT, *STARTING), "answered", "up"),
    **_rows(ANSWERING, "answered"),
    **_rows(("up", "probing", "healthy", "degraded", "placed"), "probe_started", "probing"),
    ("probing", "probe_passed"): "healthy",
    ("probing", "probe_degraded"): "degraded",
    ("probing", "probe_unknown"): "up",
    ("healthy", "placed"): "placed",
    ("degraded", "placed"): "placed",  # an operator who said --allow-degraded
    ("placed", "placed"): "placed",
    ("placed", "serve_started"): "serving",
    ("serving", "serve_started"): "serving",
    # Probed again since they were placed; the server has just seen that their weights are still there.
    ("healthy", "serve_started"): "serving",
    ("degraded", "serve_started"): "serving",
    ("serving", "serve_ended"): "placed",
    # A duck that a running server had replaced, and has taken in again.
    **_rows((*SILENT, *STARTING, *ANSWERING), "rejoined", "serving"),
    **_rows((*STARTING, *ANSWERING, "lost"), "went_silent", "lost"),
    **_rows((*SILENT, *STARTING, *ANSWERING), "power_cut", "off"),
    **_rows((*SILENT, *STARTING, *ANSWERING), "reboot_sent", "waking"),
    **_rows(STARTING, "timed_out", "lost"),
    ("probing", "timed_out"): "up",
    ("serving", "timed_out"): "placed",
    **_rows(STATES, "quarantined", "quarantined"),
    # What a duck in quarantine does is logged and changes nothing.
    **{
        ("quarantined", event): "quarantined"
        for event in ("wake_sent", "dhcp_seen", "image_sent", "answered", "went_silent", "power_cut", "reboot_sent")
    },
    ("quarantined", "released"): "unknown",
}

EVENTS = tuple(sorted({event for _, event in TABLE}))


def next_state(state: str, event: str) -> str:
    """The state after `event`. Raises `UnlistedTransition`."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise UnlistedTransition(f"a duck that is {state!r} cannot take the event {event!r}") from None


def is_listed(state: str, event: str) -> bool:
    return (state, event) in TABLE


def is_overdue(state: str, confirmed_s: float, now_s: float) -> bool:
    """Whether a state was entered, or last confirmed, longer ago than it may last."""
    limit_s = TIMEOUT_S[state]
    return limit_s is not None and now_s - confirmed_s > limit_s
