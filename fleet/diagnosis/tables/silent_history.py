"""Clues about a silent duck from its own history and its last words."""

from __future__ import annotations

import re
from itertools import pairwise

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence
from duckfleet.fleet.diagnosis.history import WRONG_BY_A_DAY_S, RtcSeen
from duckfleet.fleet.diagnosis.sources.raw import words
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, NEVER, RARELY, SOME, STRONG, Clue

RIGHT_WITHIN_S = 300.0
MANY_CARRIER_CHANGES = 12  # a start makes a few
MANY_FALLS, FALLS_BEFORE_SILENCE = 6, 3
DAY_S = 86400.0


def is_refused(error: str) -> bool:
    """Whether the box's kernel answered that nobody listens, or that who listened is gone."""
    return "refused" in error or "reset by peer" in error


def shell_works(case: Case) -> bool:
    """ssh got as far as a login, let in or not: user space runs."""
    return words((case.history.going or {}).get("ssh")).lower().startswith(("ok", "permission denied", "publickey"))


def mains_came_back(case: Case) -> Evidence | None:
    loss = case.history.mains_lost_since_answer
    if loss is None or not case.history.is_silent:
        return None
    return case.tells("mains were lost since it last answered", loss.at)


def _last_battery_word(case: Case) -> RtcSeen | None:
    cold = case.history.cold_readings()
    return cold[-1] if cold else None


def battery_failed_before(case: Case) -> Evidence | None:
    since = case.history.battery_replaced_at
    lost = [
        seen
        for seen in case.history.rtc_seen
        if abs(seen.offset_s) > WRONG_BY_A_DAY_S and (since is None or seen.at > since)
    ]
    last = _last_battery_word(case)
    if not lost or (last is not None and abs(last.offset_s) <= RIGHT_WITHIN_S and last.at > lost[-1].at):
        return None
    days = abs(lost[-1].offset_s) / 86400
    return case.tells(f"its clock was wrong by {days:.0f} days at an earlier boot", lost[-1].at)


def battery_proven(case: Case) -> Evidence | None:
    last = _last_battery_word(case)
    if last is None or abs(last.offset_s) > RIGHT_WITHIN_S:
        return None
    return case.tells("its clock was right after an earlier loss of mains: the battery held", last.at)


def _note(case: Case, pattern: str) -> Evidence | None:
    for note in reversed(case.history.notes_since_answer()):
        if re.search(pattern, note.text, re.IGNORECASE):
            return case.tells(f"note: {note.text}", note.at)
    return None


def firmware_was_touched(case: Case) -> Evidence | None:
    if switch_was_touched(case) or waking_was_set(case):
        return None
    return _note(
        case,
        r"\bbios\b|firmware|flash|\bsetup\b|\buefi\b|\bboot (?:menu|order|option|device)|secure boot|network boot"
        r"|\bpxe\b|defaults?\b|\bcsm\b|\bssd\b|nvme|\bdisk\b|windows|\busb\b|stick|reinstall|installed",
    )


def waking_was_set(case: Case) -> Evidence | None:
    return _note(case, r"wake.?on.?(?:lan|packet)|\bwol\b|\berp\b|\beup\b|deep sleep|power[- ]sav")


def battery_was_touched(case: Case) -> Evidence | None:
    note = _note(case, r"batter|coin cell|\bcr ?2032|\bcmos\b")
    replaced = case.history.battery_replaced_at
    return None if note is None or (replaced is not None and note.at == replaced) else note


def memory_was_touched(case: Case) -> Evidence | None:
    return _note(case, r"memory|\bram\b|dimm|\bmodule|\bstick of\b")


def was_opened(case: Case) -> Evidence | None:
    return (
        None
        if memory_was_touched(case)
        else _note(
            case, r"\bopen|\bfans?\b|thermal p|heat ?sink|clean|dust|vacuum|screw|\blid\b|\bcase\b|repasted|serviced"
        )
    )


def cables_were_touched(case: Case) -> Evidence | None:
    return _note(case, r"\bcabl|re-?cabl|\bpatch|\brack\b(?! switch)|\bshelf|\bmoved\b|plugged|\brj-?45|\bplug\b")


def power_was_touched(case: Case) -> Evidence | None:
    return _note(
        case, r"\boutlet|\bstrip\b|adapt[eo]r|\bbrick\b|\bpsu\b|power (?:supply|lead|cord|cable)|\bups\b|\bpdu\b"
    )


def switch_was_touched(case: Case) -> Evidence | None:
    return _note(case, r"\bswitch(?:es)?\b(?! (?:on|off|to)\b)|\bvlans?\b|\bports?\b|uplink|\btrunk|spanning")


def image_was_changed(case: Case) -> Evidence | None:
    return _note(case, r"\bimages?\b|initramfs|\bkernel\b|boot service|dnsmasq|\bdhcp\b|\btftp\b")


def image_starts_nobody(case: Case) -> Evidence | None:
    return _note(case, r"\bsent to [0-9]+ .*\b(?:0|none|no duck|nobody) (?:came up|answered|started)")


def _complaint(case: Case, pattern: str) -> Evidence | None:
    for complaint in reversed(case.history.complaints):
        if re.search(pattern, complaint.text, re.IGNORECASE):
            return case.tells(f"found before: {complaint.text}", complaint.at)
    return None


def memory_errors_before(case: Case) -> Evidence | None:
    return _complaint(case, r"pattern test|memory error|wrong bit|uncorrected|\bECC\b|EDAC")


def heat_before(case: Case) -> Evidence | None:
    return _complaint(case, r"°C|temperature|throttl|\bfan\b|\bhot\b")


def bad_link_before(case: Case) -> Evidence | None:
    return _complaint(case, r"Mb/s|Mbit|\blink\b|\bcrc\b|carrier|frames|\bcable\b")


def bad_clock_before(case: Case) -> Evidence | None:
    return _complaint(case, r"\brtc\b|\bclock\b|batter|cmos")


def _together(case: Case, pattern: str) -> Evidence | None:
    going = case.history.going or {}
    same, others = words(going.get("same")), going.get("with")
    if not re.search(pattern, same, re.IGNORECASE) or not isinstance(others, list) or not others:
        return None
    return case.tells(f"{len(others)} others fell silent with it; they share: {same}", case.history.silent_since)


def went_with_its_outlet(case: Case) -> Evidence | None:
    return _together(case, r"outlet|strip|socket|breaker|fuse|\bups\b|phase|circuit|\bpdu\b|plug")


def went_with_its_switch(case: Case) -> Evidence | None:
    return _together(case, r"domain|switch|uplink|segment|vlan")


def second_port_answers(case: Case) -> Evidence | None:
    if words((case.history.going or {}).get("second_port")) != "answers":
        return None
    return case.tells("its second port answers: the box runs", case.history.silent_since)


def kernel_still_answers_ping(case: Case) -> Evidence | None:
    going = case.history.going or {}
    match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", words(going.get("ping")))
    if match is None or int(match[1]) < int(match[2]) or int(match[2]) == 0:
        return None
    return case.tells("answers every ping and nothing else", case.history.silent_since)


def some_pings_answered(case: Case) -> Evidence | None:
    match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", words((case.history.going or {}).get("ping")))
    if match is None or not 0 < int(match[1]) < int(match[2]):
        return None
    return case.tells(f"answered {match[0]} pings while it went", case.history.silent_since)


def _last_words(case: Case, *kinds: str) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of(*kinds) if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def shut_down_by_heat(case: Case) -> Evidence | None:
    return _last_words(case, "heat_shutdown")


def log_tells_of_heat(case: Case) -> Evidence | None:
    return None if shut_down_by_heat(case) else _last_words(case, "heat_throttle")


def kernel_stood_still(case: Case) -> Evidence | None:
    if no_system_to_start(case):
        return None
    return _last_words(case, "lockup", "panic", "oops", "hung_task")


def no_system_to_start(case: Case) -> Evidence | None:
    return _last_words(case, "no_root", "no_init")


def card_was_lost(case: Case) -> Evidence | None:
    return _last_words(case, "nic_lost", "nic_not_started", "nic_stuck", "nic_bus_error")


def device_is_gone(case: Case) -> Evidence | None:
    link = case.look.link
    return case.says(link, "the interface has no device") if link.value and link.value.device_gone else None


def carrier_is_gone(case: Case) -> Evidence | None:
    link = case.look.link
    if link.value is not None:
        gone = not link.value.device_gone and link.value.link is False
        return case.says(link, "the card is there and has no link") if gone else None
    if case.interface is not None and case.interface.carrier is False:
        return case.says(case.look.interfaces, f"{case.interface.name} has no carrier")
    return None


def interface_is_absent(case: Case) -> Evidence | None:
    interfaces = case.look.interfaces
    if interfaces.value is None or case.interface is not None or not case.look.duck.mac:
        return None
    return case.says(interfaces, f"no interface has the MAC {case.look.duck.mac}")


def memory_failed_in_log(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    for record in log.value.machine_checks if log.value else ():
        if record.is_memory and record.is_uncorrected:
            return case.says(log, f"uncorrected memory error, bank {record.bank}, status {record.status:#x}")
    return _last_words(case, "memory_uncorrected")


def _most_falls_in_a_day(case: Case) -> int:
    """How often the link went from up to down in the worst day that the log tells of."""
    log = case.look.kernel_log.value
    changes = log.of("link_up", "link_down") if log else ()
    falls = [after for before, after in pairwise(changes) if (before.kind, after.kind) == ("link_up", "link_down")]
    times = [fall.since_boot_s for fall in falls if fall.since_boot_s is not None]
    if len(times) < len(falls):
        return len(falls)
    return max((sum(0 <= other - at <= DAY_S for other in times) for at in times), default=0)


def link_fell_often(case: Case, falls: int = MANY_FALLS) -> Evidence | None:
    """Up and down again and again; the start itself makes one or two changes, a switch that is restarted as many."""
    interface, most = case.interface, _most_falls_in_a_day(case)
    if interface is not None and (interface.carrier_changes or 0) >= MANY_CARRIER_CHANGES:
        return case.says(case.look.interfaces, f"{interface.carrier_changes} carrier changes since it started")
    return case.says(case.look.kernel_log, f"the link went down {most} times within a day") if most >= falls else None


def link_fell_before_it_went(case: Case) -> Evidence | None:
    """Where the box is silent too, fewer will do."""
    return link_fell_often(case, FALLS_BEFORE_SILENCE)


def link_fell_last(case: Case) -> Evidence | None:
    """The log ends with the link down after it was up: what came after could not be said over this wire."""
    log = case.look.kernel_log
    changes = log.value.of("link_up", "link_down") if log.value else ()
    if (
        len(changes) < 2
        or changes[-1].kind != "link_down"
        or changes[-2].kind != "link_up"
        or link_fell_before_it_went(case)
    ):
        return None
    return case.says(log, f"the last of the link: {changes[-1].line}")


def wake_is_off(case: Case) -> Evidence | None:
    link = case.look.link
    if (
        link.value is None
        or not link.value.wake_on
        or "g" in link.value.wake_on
        or "g" not in link.value.wake_supported
    ):
        return None
    return case.says(link, f"Wake-on: {link.value.wake_on}, though the card can wake by a packet")


def starts_over_and_over(case: Case) -> Evidence | None:
    sent = case.history.images_sent
    return case.tells(f"was sent its image {sent} times since it was woken, and never answered") if sent >= 2 else None


LINK_SIDE = ("cable_unseated", "cable_bad", "switch_port", "nic_fault")

CLUES = (
    Clue(
        mains_came_back,
        {"dead_cmos_battery": GOOD, "no_power": GOOD * LESS, "boot_order": SOME, INSUFFICIENT: HARDLY},
        rest=LESS,
    ),
    Clue(battery_failed_before, {"dead_cmos_battery": STRONG, "boot_order": LESS, INSUFFICIENT: RARELY}),
    Clue(battery_proven, {"dead_cmos_battery": HARDLY}),
    Clue(firmware_was_touched, {"boot_order": GOOD, "wol_disabled": SOME, INSUFFICIENT: RARELY}),
    Clue(waking_was_set, {"wol_disabled": STRONG, INSUFFICIENT: RARELY}),
    Clue(battery_was_touched, {"dead_cmos_battery": GOOD, "boot_order": SOME, INSUFFICIENT: LESS}),
    Clue(power_was_touched, {"no_power": GOOD, INSUFFICIENT: RARELY}),
    Clue(switch_was_touched, {"switch_port": GOOD, "cable_unseated": SOME, INSUFFICIENT: RARELY}),
    Clue(image_was_changed, {"image_or_dhcp_server": GOOD, INSUFFICIENT: LESS}),
    Clue(image_starts_nobody, {"image_or_dhcp_server": DECISIVE}, rest=HARDLY),
    Clue(memory_was_touched, {"dimm_missing": STRONG, "dimm_faulty": GOOD, INSUFFICIENT: RARELY}),
    Clue(was_opened, {"dimm_missing": GOOD, "cable_unseated": SOME, "no_power": SOME, INSUFFICIENT: LESS}),
    Clue(cables_were_touched, {"cable_unseated": GOOD, "switch_port": SOME, "no_power": SOME, INSUFFICIENT: RARELY}),
    Clue(memory_errors_before, {"dimm_faulty": STRONG, INSUFFICIENT: LESS}),
    Clue(heat_before, {"cpu_thermal": GOOD, INSUFFICIENT: LESS}),
    Clue(bad_link_before, {"cable_bad": GOOD, "cable_unseated": SOME, "switch_port": SOME, INSUFFICIENT: LESS}),
    Clue(bad_clock_before, {"dead_cmos_battery": GOOD, INSUFFICIENT: LESS}),
    Clue(went_with_its_outlet, {"no_power": DECISIVE}, rest=HARDLY),
    Clue(went_with_its_switch, {"switch_port": DECISIVE}, rest=HARDLY),
    Clue(
        second_port_answers,
        {"no_power": NEVER, "hung_os": NEVER, "cpu_thermal": NEVER, "dimm_faulty": NEVER, INSUFFICIENT: HARDLY},
    ),
    Clue(kernel_still_answers_ping, {"hung_os": STRONG}, rest=HARDLY),
    Clue(some_pings_answered, {"cable_bad": SOME, "cable_unseated": SOME, "switch_port": SOME, INSUFFICIENT: LESS}),
    Clue(shut_down_by_heat, {"cpu_thermal": DECISIVE}, rest=HARDLY),
    Clue(log_tells_of_heat, {"cpu_thermal": GOOD, INSUFFICIENT: LESS}),
    Clue(kernel_stood_still, {"hung_os": DECISIVE, "dimm_faulty": SOME}, rest=HARDLY),
    Clue(no_system_to_start, {"image_or_dhcp_server": DECISIVE}, rest=HARDLY),
    Clue(card_was_lost, {"nic_fault": DECISIVE}, rest=HARDLY),
    Clue(device_is_gone, {"nic_fault": DECISIVE}, rest=HARDLY),
    Clue(interface_is_absent, {"nic_fault": STRONG}, rest=RARELY),
    Clue(carrier_is_gone, dict.fromkeys(LINK_SIDE, GOOD) | {"nic_fault": SOME}, rest=HARDLY),
    Clue(memory_failed_in_log, {"dimm_faulty": DECISIVE, "hung_os": RARELY, INSUFFICIENT: HARDLY}),
    Clue(
        link_fell_before_it_went,
        {"cable_unseated": STRONG, "cable_bad": STRONG, "nic_fault": SOME, INSUFFICIENT: RARELY},
    ),
    Clue(link_fell_last, dict.fromkeys(LINK_SIDE, GOOD) | {"nic_fault": SOME, INSUFFICIENT: LESS}),
    Clue(wake_is_off, {"wol_disabled": DECISIVE, INSUFFICIENT: RARELY}),
    Clue(
        starts_over_and_over,
        {
            "image_or_dhcp_server": DECISIVE,
            "hung_os": GOOD,
            "dimm_faulty": GOOD,
            "nic_fault": SOME,
            INSUFFICIENT: RARELY,
        },
        rest=HARDLY,
    ),
)
