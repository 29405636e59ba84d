"""Clues about a silent duck from its own history and its last words."""

from __future__ import annotations

import re

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence
from duckfleet.fleet.diagnosis.history import WRONG_BY_A_DAY_S, RtcSeen
from duckfleet.fleet.diagnosis.sources.raw import words
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, NEVER, RARELY, SOME, STRONG, Clue

RIGHT_WITHIN_S = 300.0


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
    return _note(
        case,
        r"\bbios\b|firmware|flash|\bsetup\b|\buefi\b|boot (?:menu|order)|\bssd\b|nvme|\bdisk\b|windows|\busb\b|stick",
    )


def memory_was_touched(case: Case) -> Evidence | None:
    return _note(case, r"memory|\bram\b|dimm|module|sodimm")


def was_opened(case: Case) -> Evidence | None:
    return (
        None
        if memory_was_touched(case)
        else _note(case, r"open|fan|thermal paste|heat ?sink|cleaned|dust|screw|lid|case")
    )


def cables_were_touched(case: Case) -> Evidence | None:
    return _note(case, r"cable|patch|rack|moved|re-?cabled|plugged|switch")


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
    return _last_words(case, "memory_uncorrected")


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
    Clue(memory_failed_in_log, {"dimm_faulty": STRONG, INSUFFICIENT: RARELY}),
)
