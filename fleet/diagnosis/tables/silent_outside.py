"""Clues about a silent duck from switch port, smart plug and a person."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise

from duckfleet.fleet.diagnosis.case import (
    PLUG_DEAD,
    PLUG_RELAY_OFF,
    PLUG_ROSE,
    PLUG_STALLED,
    PLUG_STANDBY,
    PLUG_STEADY,
    PORT_DOWN,
    PORT_ROSE,
    PORT_STANDBY,
    PORT_UNMOVED,
    STANDBY_BELOW_W,
    Case,
)
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence
from duckfleet.fleet.diagnosis.history import AFTER_WAKE
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, NEVER, RARELY, SOME, STRONG, Clue

See = Callable[[Case], Evidence | None]
NO_REASON = re.compile(
    r"not ?connect|no (?:link|carrier|cable|signal)|unplugged|link (?:down|loss|lost)|^(?:down|up|ok)$", re.I
)
BLOCKED = re.compile(r"block|discard|err|guest|quarantine|isolat|shut|disabled|loop", re.I)
MANY_LINK_CHANGES = 6  # in an hour; a start makes two or three


def _port(story: str, text: str, *, by_itself: bool | None = None) -> See:
    def see(case: Case) -> Evidence | None:
        port = case.port
        if port is None or case.port_story != story:
            return None
        if by_itself is not None and case.fell_silent_by_itself != by_itself:
            return None
        speed = f" ({port.speed_mbps} Mbit/s)" if port.up else ""
        return case.seen_outside("switch", f"port {port.name}: {text}{speed}", port.since)

    return see


def port_is_switched_off(case: Case) -> Evidence | None:
    port = case.port
    if port is None or port.admin_up is not False:
        return None
    return case.seen_outside("switch", f"port {port.name} is switched off by configuration", port.since)


def switch_says_why(case: Case) -> Evidence | None:
    port = case.port
    if port is None or not port.reason or NO_REASON.search(port.reason) or port.up:
        return None
    return case.seen_outside("switch", f"port {port.name} is down: {port.reason}", port.since)


def port_lets_nothing_through(case: Case) -> Evidence | None:
    """The link is up, and the switch does not forward: it looks like an awake box that says nothing."""
    port = case.port
    if port is None or not port.up or not BLOCKED.search(port.reason):
        return None
    return case.seen_outside("switch", f"port {port.name} lets nothing through: {port.reason}", port.since)


def link_left_when_switched_off(case: Case) -> Evidence | None:
    port, off = case.port, case.history.off_at
    if port is None or case.port_story != PORT_DOWN or case.fell_silent_by_itself or port.since is None or off is None:
        return None
    if abs((port.since - off).total_seconds()) > 120:
        return None
    return case.seen_outside("switch", f"port {port.name}: the link left when the box was switched off", port.since)


def link_left_while_off(case: Case) -> Evidence | None:
    port, off = case.port, case.history.off_at
    if port is None or case.port_story != PORT_DOWN or case.fell_silent_by_itself or port.since is None or off is None:
        return None
    if (port.since - off).total_seconds() <= 120:
        return None
    return case.seen_outside("switch", f"port {port.name}: the link left while the box was off", port.since)


def port_flaps(case: Case) -> Evidence | None:
    port = case.port
    if port is None or (port.link_changes or 0) < MANY_LINK_CHANGES:
        return None
    return case.seen_outside("switch", f"port {port.name}: {port.link_changes} link changes in an hour", port.since)


def port_hears_broken_frames(case: Case) -> Evidence | None:
    port = case.port
    if port is None or not port.in_errors:
        return None
    return case.seen_outside("switch", f"port {port.name}: {port.in_errors} broken frames came in", port.since)


def _plug(story: str, text: str, *, by_itself: bool | None = None) -> See:
    def see(case: Case) -> Evidence | None:
        plug = case.plug
        if plug is None or case.plug_story != story:
            return None
        if by_itself is not None and case.fell_silent_by_itself != by_itself:
            return None
        watts = f": {plug.watts:g} W" if plug.watts is not None else ""
        return case.seen_outside("plug", f"{text}{watts}", plug.at)

    return see


def starts_again_and_again(case: Case) -> Evidence | None:
    plug = case.plug
    if plug is None or case.history.silent_since is None:
        return None
    since = [watts for at, watts in plug.history if at >= case.history.silent_since]
    starts = sum(before < STANDBY_BELOW_W <= after for before, after in pairwise(since))
    return case.seen_outside("plug", f"its draw rose from standby {starts} times", plug.at) if starts >= 2 else None


def _person(question: str, answers: Mapping[str, str]) -> See:
    def see(case: Case) -> Evidence | None:
        answer = case.answer(question)
        return case.seen_outside("person", answers[answer]) if answer in answers else None

    return see


def no_picture_after_wake(case: Case) -> Evidence | None:
    """Fed, told to start, and not even the firmware's picture: it does not get through its self-test."""
    if case.history.standing != AFTER_WAKE or case.answer("screen") != "nothing" or case.answer("power_led") != "on":
        return None
    return case.seen_outside("person", "its power LED is on and its firmware shows nothing")


def beeps_were_heard(case: Case) -> Evidence | None:
    answer = case.answer("beeps")
    if not answer or re.fullmatch(r"(?:0|no|none|nothing|silent|one|1)(?: short)?(?: beeps?)?", answer):
        return None  # one short beep is a good start
    return case.seen_outside("person", f"beeps: {answer}")


AWAKE: Mapping[str, float] = {
    "dead_cmos_battery": GOOD,
    "boot_order": GOOD,
    "hung_os": LESS,
    "dimm_missing": RARELY,
    "dimm_faulty": RARELY,
    "image_or_dhcp_server": LESS,
    "nic_fault": RARELY,
    "wol_disabled": NEVER,
    "no_power": NEVER,
    "cable_unseated": HARDLY,
    "cable_bad": RARELY,
    "switch_port": HARDLY,
    "cpu_thermal": RARELY,
    INSUFFICIENT: HARDLY,
}
FED_AND_OFF: Mapping[str, float] = {
    "wol_disabled": GOOD,
    "no_power": HARDLY,
    "cable_unseated": LESS,
    "dimm_missing": RARELY,
    "dimm_faulty": RARELY,
    "dead_cmos_battery": RARELY,
    "boot_order": HARDLY,
    "hung_os": HARDLY,
    "image_or_dhcp_server": HARDLY,
    INSUFFICIENT: HARDLY,
}

SWITCH = (
    Clue(
        _port(PORT_DOWN, "no link"),
        {
            "no_power": GOOD,
            "cable_unseated": GOOD,
            "switch_port": GOOD,
            "cable_bad": SOME,
            "nic_fault": SOME,
            "cpu_thermal": LESS,
            "wol_disabled": LESS,
            "dimm_missing": LESS,
            "dimm_faulty": LESS,
            INSUFFICIENT: HARDLY,
        },
        rest=HARDLY,
    ),
    Clue(link_left_when_switched_off, {"wol_disabled": GOOD * SOME, "no_power": SOME, "cable_unseated": RARELY}),
    Clue(link_left_while_off, {"cable_unseated": SOME, "no_power": SOME, "switch_port": SOME, "wol_disabled": RARELY}),
    Clue(port_is_switched_off, {"switch_port": DECISIVE}, rest=HARDLY),
    Clue(switch_says_why, {"switch_port": DECISIVE}, rest=RARELY),
    Clue(port_lets_nothing_through, {"switch_port": DECISIVE * STRONG}, rest=HARDLY),
    Clue(
        port_flaps,
        {"cable_unseated": GOOD, "cable_bad": GOOD, "nic_fault": SOME, "no_power": RARELY, INSUFFICIENT: HARDLY},
    ),
    Clue(
        port_hears_broken_frames, {"cable_bad": GOOD, "cable_unseated": SOME, "no_power": RARELY, INSUFFICIENT: RARELY}
    ),
    Clue(_port(PORT_ROSE, "the link came up after the packet: it woke"), AWAKE),
    Clue(
        _port(PORT_STANDBY, "a card that waits", by_itself=False),
        {**FED_AND_OFF, "cable_unseated": HARDLY, "switch_port": RARELY, "dimm_missing": 1.0, "dimm_faulty": 1.0},
    ),
    Clue(
        _port(PORT_STANDBY, "a card that waits", by_itself=True),
        {
            "cpu_thermal": GOOD,
            "dimm_faulty": SOME,
            "dimm_missing": SOME,
            "no_power": HARDLY,
            "cable_unseated": HARDLY,
            "hung_os": HARDLY,
            "switch_port": RARELY,
            "wol_disabled": SOME,
        },
    ),
    Clue(
        _port(PORT_UNMOVED, "full link since before it fell silent", by_itself=True),
        {"hung_os": STRONG, "nic_fault": LESS, INSUFFICIENT: HARDLY},
        rest=HARDLY,
    ),
    Clue(
        _port(PORT_UNMOVED, "full link since before the packet", by_itself=False),
        {"wol_disabled": GOOD, "hung_os": GOOD, "no_power": NEVER, "cable_unseated": HARDLY, INSUFFICIENT: LESS},
    ),
)

PLUG = (
    Clue(_plug(PLUG_DEAD, "draws nothing"), {"no_power": DECISIVE}, rest=HARDLY),
    Clue(_plug(PLUG_RELAY_OFF, "the plug's relay is off"), {"no_power": DECISIVE}, rest=HARDLY),
    Clue(
        _plug(PLUG_STANDBY, "fed, and off", by_itself=False),
        {**FED_AND_OFF, "cable_unseated": SOME, "switch_port": SOME},
    ),
    Clue(
        _plug(PLUG_STANDBY, "fell to standby", by_itself=True),
        {"cpu_thermal": STRONG, "no_power": SOME, "dimm_faulty": SOME, "wol_disabled": SOME, INSUFFICIENT: LESS},
        rest=HARDLY,
    ),
    Clue(
        _plug(PLUG_STALLED, "starts and stops before its firmware is up"),
        {"dimm_missing": STRONG, "dimm_faulty": STRONG, "dead_cmos_battery": RARELY, INSUFFICIENT: HARDLY},
        rest=HARDLY,
    ),
    Clue(
        _plug(PLUG_ROSE, "it runs"),
        {**AWAKE, "cable_unseated": RARELY, "switch_port": RARELY, "nic_fault": LESS, "cable_bad": RARELY},
    ),
    Clue(_plug(PLUG_STEADY, "never went off: it did not get to its end", by_itself=False), {"hung_os": STRONG}),
    Clue(
        _plug(PLUG_STEADY, "draws what it did before"),
        {
            "hung_os": SOME,
            "cable_unseated": SOME,
            "cable_bad": SOME,
            "switch_port": SOME,
            "nic_fault": SOME,
            "no_power": NEVER,
            "cpu_thermal": HARDLY,
            "wol_disabled": NEVER,
            "dead_cmos_battery": HARDLY,
            "boot_order": HARDLY,
            "dimm_missing": HARDLY,
            INSUFFICIENT: LESS,
        },
    ),
    Clue(starts_again_and_again, {"dimm_faulty": SOME, "dimm_missing": SOME, INSUFFICIENT: RARELY}),
)

PERSON = (
    Clue(
        _person("power_led", {"off": "its power LED is off"}),
        {"no_power": GOOD, "wol_disabled": SOME, "cpu_thermal": SOME, INSUFFICIENT: HARDLY},
        rest=RARELY,
    ),
    Clue(
        _person("power_led", {"on": "its power LED is on"}),
        {"no_power": NEVER, "wol_disabled": HARDLY, "cpu_thermal": RARELY, INSUFFICIENT: LESS},
    ),
    Clue(
        _person("button", {"nothing": "its button does nothing"}),
        {"no_power": STRONG, INSUFFICIENT: HARDLY},
        rest=RARELY,
    ),
    Clue(
        _person("button", {"starts": "it starts by its button"}),
        {"wol_disabled": STRONG, "no_power": HARDLY, "cpu_thermal": SOME, INSUFFICIENT: HARDLY},
        rest=LESS,
    ),
    Clue(
        _person("link_led", {"off": "its link LED is off"}),
        {
            "cable_unseated": SOME,
            "cable_bad": SOME,
            "switch_port": SOME,
            "nic_fault": SOME,
            "no_power": SOME,
            INSUFFICIENT: RARELY,
        },
        rest=RARELY,
    ),
    Clue(
        _person("link_led", {"on": "its link LED is on"}),
        {"cable_unseated": HARDLY, "no_power": HARDLY, "switch_port": RARELY, "cable_bad": LESS, INSUFFICIENT: LESS},
    ),
    Clue(_person("cable", {"loose": "its network cable is loose"}), {"cable_unseated": DECISIVE}, rest=RARELY),
    Clue(_person("cable", {"seated": "its network cable is seated"}), {"cable_unseated": HARDLY}),
    Clue(
        _person("moved_to_other_port", {"works": "works at another port of the switch"}),
        {"switch_port": DECISIVE},
        rest=HARDLY,
    ),
    Clue(_person("moved_to_other_port", {"same": "the same at another port of the switch"}), {"switch_port": HARDLY}),
    Clue(
        _person("swapped_cable", {"works": "works with another cable"}),
        {"cable_bad": DECISIVE, "cable_unseated": SOME},
        rest=HARDLY,
    ),
    Clue(
        _person("swapped_cable", {"same": "the same with another cable"}),
        {"cable_bad": HARDLY, "cable_unseated": HARDLY},
    ),
    Clue(
        _person("screen", {"press_f1": "its screen waits for F1"}),
        {"dead_cmos_battery": STRONG, INSUFFICIENT: HARDLY},
        rest=HARDLY,
    ),
    Clue(
        _person("screen", {"no_boot_device": "its screen says that there is no boot device"}),
        {"boot_order": STRONG, "dead_cmos_battery": SOME, INSUFFICIENT: HARDLY},
        rest=HARDLY,
    ),
    Clue(_person("screen", {"os_desktop": "its screen shows a desktop"}), {"boot_order": DECISIVE}, rest=HARDLY),
    Clue(
        _person("screen", {"kernel_panic": "its screen shows a kernel panic"}),
        {"hung_os": STRONG, "image_or_dhcp_server": GOOD, "dimm_faulty": SOME},
        rest=HARDLY,
    ),
    Clue(
        _person("screen", {"nothing": "its screen stays dark"}),
        {"dimm_missing": SOME, "dimm_faulty": SOME, "no_power": SOME, "boot_order": RARELY, "dead_cmos_battery": LESS},
    ),
    Clue(no_picture_after_wake, {"dimm_missing": GOOD, "dimm_faulty": GOOD, INSUFFICIENT: RARELY}),
    Clue(
        _person("key_pressed", {"starts": "it starts once a key is pressed"}),
        {"dead_cmos_battery": STRONG, INSUFFICIENT: HARDLY},
        rest=RARELY,
    ),
    Clue(_person("key_pressed", {"nothing": "a key changes nothing"}), {"hung_os": SOME, "dead_cmos_battery": RARELY}),
    Clue(
        _person("fan", {"still": "its fan stands still"}),
        {"cpu_thermal": STRONG, "no_power": SOME, "wol_disabled": SOME},
    ),
    Clue(_person("fan", {"spinning": "its fan turns"}), {"no_power": HARDLY, "wol_disabled": HARDLY}),
    Clue(beeps_were_heard, {"dimm_missing": GOOD, "dimm_faulty": GOOD, "no_power": NEVER, INSUFFICIENT: HARDLY}),
)

CLUES = (*SWITCH, *PLUG, *PERSON)
