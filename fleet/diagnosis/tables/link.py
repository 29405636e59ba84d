"""The network link of a duck that answers (or did): broken, slow, lossy, too narrow; and whether it can be woken."""

from __future__ import annotations

import re

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.history import NOT_SILENT, OFF
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, RARELY, SOME, STRONG, Clue, Symptom
from duckfleet.fleet.diagnosis.tables.silent_history import (
    card_was_lost,
    carrier_is_gone,
    device_is_gone,
    interface_is_absent,
    link_fell_often,
    wake_is_off,
)
from duckfleet.fleet.diagnosis.tables.silent_outside import port_flaps, port_hears_broken_frames

FULL_SPEED = 0.95
FEW_BROKEN = 5  # over a burst of tens of thousands: a plug that moved once
LOST_SHARE = 0.002
SLOW_TRIPS, QUICK_TRIPS = 3.0, 1.3  # times the fleet's median
SIDES = ("silent_after_wake", "went_silent")


def _expected_mbps(case: Case) -> int | None:
    return case.look.baseline.expect.link_mbps


def _speed(case: Case) -> tuple[int, Evidence] | None:
    """The link's speed in Mbit/s by the card, else by the switch, else by the kernel's log."""
    link, log, port = case.look.link, case.look.kernel_log, case.port
    if link.value is not None:
        speed = link.value.speed_mbps
        return (speed, case.says(link, f"{speed} Mbit/s")) if speed else None
    if case.history.standing == NOT_SILENT and port is not None and port.up and port.speed_mbps:
        return port.speed_mbps, case.seen_outside("switch", f"port {port.name}: {port.speed_mbps} Mbit/s", port.since)
    if log.value is not None and log.value.link_mbps:
        return log.value.link_mbps, case.says(log, f"the link came up with {log.value.link_mbps} Mbit/s")
    return None


def link_is_slow(case: Case) -> Evidence | None:
    speed, expected = _speed(case), _expected_mbps(case)
    if speed is None or expected is None or speed[0] >= FULL_SPEED * expected or case.history.standing == OFF:
        return None
    return Evidence(speed[1].source, speed[1].at, f"{speed[1].text}, {expected} expected")


def link_is_half(case: Case) -> Evidence | None:
    link = case.look.link
    half = link.value is not None and link.value.full_duplex is False and bool(link.value.link)
    return case.says(link, "half duplex") if half else None


def frames_break(case: Case) -> Evidence | None:
    counters = case.look.counters
    if counters.value is None or counters.value.broken_frames < FEW_BROKEN:
        return None
    return case.says(counters, f"{counters.value.broken_frames} broken frames over the burst")


def transmitter_sticks(case: Case) -> Evidence | None:
    counters = case.look.counters
    stuck = counters.value.transmitter_stuck if counters.value else 0
    return case.says(counters, f"the transmitter stuck {stuck} times over the burst") if stuck else None


def wire_was_downgraded(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("wire_downgraded") if log.value else ()
    return case.says(log, marks[-1].line) if marks and link_is_slow(case) else None


def partner_offers_full_speed(case: Case) -> Evidence | None:
    link, expected = case.look.link, _expected_mbps(case)
    if expected is None or link_is_slow(case) is None:
        return None
    if link.value and (link.value.partner_mbps or 0) >= FULL_SPEED * expected:
        return case.says(link, f"the switch offers {link.value.partner_mbps} Mbit/s")
    if case.port is not None and (case.port.max_mbps or 0) >= FULL_SPEED * expected:
        return case.seen_outside("switch", f"port {case.port.name} can do {case.port.max_mbps} Mbit/s")
    return None


def partner_offers_less(case: Case) -> Evidence | None:
    link, expected = case.look.link, _expected_mbps(case)
    if expected is None:
        return None
    if link.value and link.value.partner_mbps and link.value.partner_mbps < FULL_SPEED * expected:
        return case.says(link, f"the switch offers {link.value.partner_mbps} Mbit/s at most")
    if case.port is not None and case.port.max_mbps and case.port.max_mbps < FULL_SPEED * expected:
        return case.seen_outside("switch", f"port {case.port.name} is set to {case.port.max_mbps} Mbit/s at most")
    return None


def partner_does_not_negotiate(case: Case) -> Evidence | None:
    """A port that is fixed: the card hears its speed and guesses half duplex (IEEE 802.3, parallel detection)."""
    link = case.look.link
    silent = link.value is not None and link.value.partner_negotiates is False
    return case.says(link, "the switch does not negotiate: its port is fixed") if silent else None


def collides_late(case: Case) -> Evidence | None:
    counters = case.look.counters
    late = counters.value.late_collisions if counters.value else 0
    return (
        case.says(counters, f"{late} late collisions: the two sides disagree on duplex") if late >= FEW_BROKEN else None
    )


def duck_offers_less(case: Case) -> Evidence | None:
    link, expected = case.look.link, _expected_mbps(case)
    if expected is None or link.value is None or not link.value.offered_mbps:
        return None
    if link.value.offered_mbps >= FULL_SPEED * expected:
        return None
    return case.says(link, f"the card itself offers {link.value.offered_mbps} Mbit/s at most")


def domain_is_as_slow(case: Case) -> Evidence | None:
    speed = _speed(case)
    figure = case.look.baseline.domains.get(case.look.duck.domain, {}).get("link_mbps")
    if speed is None or figure is None or link_is_slow(case) is None:
        return None
    if abs(figure.median - speed[0]) > 0.05 * figure.median:
        return None
    return case.seen_outside("fleet", f"its whole domain has {figure.median:.0f} Mbit/s")


def _wire_pairs_missing(case: Case) -> Evidence | None:
    speed = _speed(case)
    if speed is None or speed[0] not in (10, 100) or link_is_slow(case) is None:
        return None
    return Evidence(speed[1].source, speed[1].at, f"{speed[0]} Mbit/s: two of four pairs suffice for it")


def bus_is_narrow(case: Case) -> Evidence | None:
    """The card's own bus carries less than the link wants."""
    log, expected = case.look.kernel_log, _expected_mbps(case)
    for mark in log.value.of("nic_bus_narrow") if log.value else ():
        share = re.search(r"([0-9]{1,4}\.[0-9]{1,4}) Gb/s available", mark.line)
        if share and expected is not None and float(share[1]) * 1000 < expected:
            return case.says(log, mark.line)
    return None


def _person(case: Case, question: str, answer: str, text: str) -> Evidence | None:
    return case.seen_outside("person", text) if case.answer(question) == answer else None


def other_port_works(case: Case) -> Evidence | None:
    return _person(case, "moved_to_other_port", "works", "works at another port of the switch")


def other_port_same(case: Case) -> Evidence | None:
    return _person(case, "moved_to_other_port", "same", "the same at another port of the switch")


def other_cable_works(case: Case) -> Evidence | None:
    return _person(case, "swapped_cable", "works", "works with another cable")


def other_cable_same(case: Case) -> Evidence | None:
    return _person(case, "swapped_cable", "same", "the same with another cable")


def cable_is_loose(case: Case) -> Evidence | None:
    return _person(case, "cable", "loose", "its network cable is loose")


def cable_is_seated(case: Case) -> Evidence | None:
    return _person(case, "cable", "seated", "its network cable is seated")


def switch_hears_many_broken_frames(case: Case) -> Evidence | None:
    return port_hears_broken_frames(case) if case.port and (case.port.in_errors or 0) >= FEW_BROKEN else None


def link_faulty(case: Case) -> tuple[Evidence, ...]:
    signs = (
        device_is_gone(case),
        card_was_lost(case),
        interface_is_absent(case),
        bus_is_narrow(case),
        carrier_is_gone(case),
        link_is_slow(case),
        link_is_half(case),
        frames_break(case),
        transmitter_sticks(case),
        link_fell_often(case),
        port_flaps(case),
        switch_hears_many_broken_frames(case),
    )
    return tuple(sign for sign in signs if sign)


def datagrams_are_lost(case: Case) -> Evidence | None:
    burst = case.look.burst
    if burst.value is None or burst.value.lost < LOST_SHARE:
        return None
    text = f"lost {burst.value.lost_to_duck:.2%} to the duck, {burst.value.lost_from_duck:.2%} from it"
    return case.says(burst, text)


def queues_overflow(case: Case) -> Evidence | None:
    counters = case.look.counters
    dropped = counters.value.dropped_by_full_queues if counters.value else 0
    return case.says(counters, f"{dropped} frames dropped by full queues") if dropped else None


def switch_discards(case: Case) -> Evidence | None:
    port = case.port
    if port is None or not port.out_discards:
        return None
    return case.seen_outside("switch", f"port {port.name}: {port.out_discards} frames discarded")


def trips_are_slow(case: Case) -> Evidence | None:
    burst, figure = case.look.burst, case.look.baseline.figure("rtt_us_p50", case.look.duck.domain)
    p50 = burst.value.rtt_p50_us if burst.value else None
    if p50 is None or figure is None or p50 < SLOW_TRIPS * figure.median:
        return None
    return case.says(burst, f"median round trip {p50:.0f} µs, the fleet's is {figure.median:.0f}: queues stand")


def trips_are_quick(case: Case) -> Evidence | None:
    burst, figure = case.look.burst, case.look.baseline.figure("rtt_us_p50", case.look.duck.domain)
    p50 = burst.value.rtt_p50_us if burst.value else None
    if p50 is None or figure is None or p50 > QUICK_TRIPS * figure.median:
        return None
    return case.says(burst, f"median round trip {p50:.0f} µs, as the fleet's: no queue stands")


def lossy(case: Case) -> tuple[Evidence, ...]:
    lost = datagrams_are_lost(case)
    return (lost,) if lost else ()


def frames_are_too_large(case: Case) -> tuple[Evidence, ...]:
    burst, expected = case.look.burst, case.look.baseline.expect.mtu
    passed = burst.value.mtu_passed if burst.value else None
    if passed is None and (small := duck_has_small_mtu(case)):
        return (small,)
    if passed is None or expected is None or passed >= expected:
        return ()
    return (case.says(burst, f"frames of {passed} bytes pass, {expected} expected"),)


def duck_has_small_mtu(case: Case) -> Evidence | None:
    interface, expected = case.interface, case.look.baseline.expect.mtu
    if interface is None or expected is None or interface.mtu >= expected:
        return None
    return case.says(case.look.interfaces, f"{interface.name} has an MTU of {interface.mtu}")


def switch_has_small_mtu(case: Case) -> Evidence | None:
    port, expected = case.port, case.look.baseline.expect.mtu
    if port is None or expected is None or port.mtu is None or port.mtu >= expected:
        return None
    return case.seen_outside("switch", f"port {port.name} has an MTU of {port.mtu}")


def wakes_failed(case: Case) -> Evidence | None:
    failed = case.history.failed_wakes
    if not failed or case.history.is_silent or case.history.mains_lost_since_answer:
        return None
    return case.tells(f"{failed} wakes failed before somebody started it", case.history.last_answer_at)


def starts_by_button(case: Case) -> Evidence | None:
    return _person(case, "button", "starts", "it starts by its button")


def cannot_be_woken(case: Case) -> tuple[Evidence, ...]:
    return tuple(sign for sign in (wake_is_off(case), wakes_failed(case)) if sign)


SYMPTOMS = (
    Symptom(
        "link",
        "its network link is bad",
        Severity.DEGRADED,
        link_faulty,
        {"cable_bad": 0.4, "switch_port": 0.25, "cable_unseated": 0.15, "nic_fault": 0.2},
        (
            Clue(device_is_gone, {"nic_fault": DECISIVE}, rest=RARELY),
            Clue(card_was_lost, {"nic_fault": DECISIVE}, rest=RARELY),
            Clue(interface_is_absent, {"nic_fault": STRONG}),
            Clue(bus_is_narrow, {"nic_fault": STRONG}),
            Clue(transmitter_sticks, {"nic_fault": GOOD}),
            Clue(carrier_is_gone, {"cable_unseated": GOOD, "switch_port": SOME}),
            Clue(frames_break, {"cable_bad": STRONG, "cable_unseated": SOME, "switch_port": LESS}),
            Clue(switch_hears_many_broken_frames, {"cable_bad": GOOD}),
            Clue(link_fell_often, {"cable_unseated": GOOD, "cable_bad": GOOD}),
            Clue(port_flaps, {"cable_unseated": GOOD, "cable_bad": GOOD}),
            Clue(wire_was_downgraded, {"cable_bad": STRONG}, rest=LESS),
            Clue(partner_offers_full_speed, {"cable_bad": GOOD, "switch_port": RARELY}),
            Clue(partner_offers_less, {"switch_port": DECISIVE}, rest=RARELY),
            Clue(partner_does_not_negotiate, {"switch_port": STRONG}),
            Clue(collides_late, {"switch_port": GOOD}),
            Clue(duck_offers_less, {"nic_fault": STRONG}),
            Clue(domain_is_as_slow, {"switch_port": DECISIVE}, rest=RARELY),
            Clue(_wire_pairs_missing, {"cable_bad": SOME}),
            Clue(link_is_half, {"switch_port": SOME}),
            Clue(other_port_works, {"switch_port": DECISIVE}, rest=HARDLY),
            Clue(other_port_same, {"switch_port": HARDLY}),
            Clue(other_cable_works, {"cable_bad": DECISIVE}, rest=HARDLY),
            Clue(other_cable_same, {"cable_bad": HARDLY, "cable_unseated": HARDLY}),
            Clue(cable_is_loose, {"cable_unseated": DECISIVE}, rest=RARELY),
            Clue(cable_is_seated, {"cable_unseated": RARELY}),
        ),
        part_of=SIDES,
    ),
    Symptom(
        "loss",
        "datagrams are lost, frames are whole",
        Severity.DEGRADED,
        lossy,
        {"packet_loss_congestion": 0.6, "cable_bad": 0.15, "switch_port": 0.15, "nic_fault": 0.1},
        (
            Clue(queues_overflow, {"packet_loss_congestion": STRONG}),
            Clue(switch_discards, {"packet_loss_congestion": STRONG}),
            Clue(trips_are_slow, {"packet_loss_congestion": GOOD}),
            Clue(trips_are_quick, {"packet_loss_congestion": LESS, "cable_bad": SOME}),
            Clue(port_hears_broken_frames, {"cable_bad": STRONG}),
            Clue(other_port_works, {"switch_port": DECISIVE}, rest=HARDLY),
            Clue(other_cable_works, {"cable_bad": DECISIVE}, rest=HARDLY),
        ),
        part_of=(*SIDES, "link"),
    ),
    Symptom(
        "mtu",
        "large frames do not pass",
        Severity.DEGRADED,
        frames_are_too_large,
        {"mtu_mismatch": 0.8, "switch_port": 0.2},
        (
            Clue(duck_has_small_mtu, {"mtu_mismatch": STRONG}),
            Clue(switch_has_small_mtu, {"switch_port": SOME}),
        ),
        part_of=SIDES,
    ),
    Symptom(
        "cannot_be_woken",
        "will not wake by a packet",
        Severity.REPAIR,
        cannot_be_woken,
        {"wol_disabled": 0.8, "boot_order": 0.05, "dead_cmos_battery": 0.1, "switch_port": 0.05},
        (
            Clue(wake_is_off, {"wol_disabled": STRONG}),
            Clue(wakes_failed, {"wol_disabled": SOME}),
            Clue(starts_by_button, {"wol_disabled": GOOD}),
        ),
        part_of=SIDES,
    ),
)
