"""Clues about a silent duck from the boot service's side: who asked for what, and whether anybody listened."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.case import PLUG_ROSE, PORT_ROSE, Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence
from duckfleet.fleet.diagnosis.sources.around.dhcp_log import DhcpAsk
from duckfleet.fleet.diagnosis.tables.rows import DECISIVE, GOOD, HARDLY, LESS, NEVER, RARELY, SOME, STRONG, Clue

MOSTLY_DEAF = 0.5


def _asks(case: Case) -> tuple[DhcpAsk, ...]:
    """The duck's requests since its last start was tried."""
    log = case.look.dhcp.value
    if log is None:
        return ()
    begin = case.history.woken_at or case.history.silent_since
    return tuple(ask for ask in log.asks_of(case.look.duck.mac) if begin is None or ask.at >= begin)


def asked_by_another_system(case: Case) -> Evidence | None:
    for ask in _asks(case):
        if ask.is_other_system and ask.client_name != case.look.duck.name:
            name = f" {ask.client_name}" if ask.client_name else ""
            return case.says(case.look.dhcp, f"asked for an address as {ask.vendor_class!r}{name}", ask.at)
    if case.history.asked_as_other_system:
        return case.tells(f"asked for an address as {case.history.asked_as_other_system!r}")
    return None


def asked_in_vain(case: Case) -> Evidence | None:
    asks = [ask for ask in _asks(case) if not ask.is_other_system]
    if not asks or any(ask.answered and not ask.refusal for ask in asks):
        return None
    why = next((ask.refusal for ask in reversed(asks) if ask.refusal), "no offer")
    return case.says(case.look.dhcp, f"asked {len(asks)} times, the server's answer: {why}", asks[-1].at)


def boot_file_failed(case: Case) -> Evidence | None:
    log = case.look.dhcp.value
    if log is None or not _asks(case):
        return None
    begin = _asks(case)[0].at
    mine = [
        file
        for file in log.files
        if file.address == case.look.duck.address or (not file.address and file.failure and file.at >= begin)
    ]
    if not mine or not mine[-1].failure:
        return None
    return case.says(case.look.dhcp, f"boot file {mine[-1].name}: {mine[-1].failure}", mine[-1].at)


def offers_not_taken(case: Case) -> Evidence | None:
    asks = [ask for ask in _asks(case) if not ask.is_other_system]
    if len(asks) < 2 or not all(ask.answered for ask in asks) or any(ask.acknowledged for ask in asks):
        return None
    return case.says(case.look.dhcp, f"was offered an address {len(asks)} times and took none", asks[-1].at)


def took_the_image(case: Case) -> Evidence | None:
    log = case.look.dhcp.value
    asks = [ask for ask in _asks(case) if ask.acknowledged and not ask.is_other_system]
    if log is None or not asks:
        return None
    mine = [file for file in log.files if file.address == case.look.duck.address and file.at >= asks[0].at]
    if not mine or mine[-1].failure:
        return None
    return case.says(case.look.dhcp, f"was given an address and {mine[-1].name}", mine[-1].at)


def nobody_listened(case: Case) -> Evidence | None:
    log = case.look.dhcp.value
    if log is None or log.deaf_share < MOSTLY_DEAF or _asks(case):
        return None
    return case.says(case.look.dhcp, f"no server ran for {log.deaf_s:.0f} s of the time it was watched", log.watched_to)


def awake_and_nobody_listened(case: Case) -> Evidence | None:
    if case.port_story != PORT_ROSE and case.plug_story != PLUG_ROSE:
        return None
    return nobody_listened(case)


def neighbours_were_served(case: Case) -> Evidence | None:
    log = case.look.dhcp.value
    if log is None or _asks(case) or log.deaf_share >= MOSTLY_DEAF:
        return None
    others = {ask.mac for ask in log.asks if ask.mac != case.look.duck.mac and ask.acknowledged}
    return case.says(case.look.dhcp, f"did not ask, while {len(others)} others did", log.watched_to) if others else None


def stopped_while_loading(case: Case) -> Evidence | None:
    if case.history.timed_out_in != "loading" or took_the_image(case) or boot_file_failed(case):
        return None
    return case.tells("fetched its image and was not heard again")


def asked_and_fetched_nothing(case: Case) -> Evidence | None:
    """By the history alone; the log says more where there is one."""
    if case.history.timed_out_in != "dhcp" or case.history.asked_as_other_system or _asks(case):
        return None
    return case.tells("asked for an address and fetched nothing")


def nobody_called_it(case: Case) -> Evidence | None:
    packets = case.look.packets
    if case.history.woken_at is None or packets.value is None or not case.look.duck.mac:
        return None
    if any(packet.mac == case.look.duck.mac for packet in packets.value):
        return None
    others = ", ".join(sorted({packet.mac for packet in packets.value})) or "nobody"
    return case.says(packets, f"no packet was addressed to it, but to {others}")


CLUES = (
    Clue(asked_by_another_system, {"boot_order": DECISIVE}, rest=HARDLY),
    Clue(asked_in_vain, {"image_or_dhcp_server": DECISIVE * STRONG}, rest=HARDLY),
    Clue(boot_file_failed, {"image_or_dhcp_server": DECISIVE * STRONG}, rest=HARDLY),
    Clue(
        offers_not_taken,
        {"image_or_dhcp_server": GOOD, "cable_bad": GOOD, "switch_port": GOOD, "nic_fault": SOME, INSUFFICIENT: RARELY},
        rest=HARDLY,
    ),
    Clue(
        took_the_image,
        {"image_or_dhcp_server": STRONG, "hung_os": GOOD, "dimm_faulty": SOME, "nic_fault": SOME, INSUFFICIENT: RARELY},
        rest=NEVER,
    ),
    Clue(
        stopped_while_loading,
        {"image_or_dhcp_server": STRONG, "hung_os": GOOD, "dimm_faulty": SOME, "nic_fault": SOME, INSUFFICIENT: RARELY},
        rest=NEVER,
    ),
    Clue(
        asked_and_fetched_nothing,
        {"image_or_dhcp_server": DECISIVE, "cable_bad": SOME, "nic_fault": SOME, INSUFFICIENT: RARELY},
        rest=HARDLY,
    ),
    Clue(nobody_called_it, {INSUFFICIENT: STRONG}),
    Clue(nobody_listened, {"image_or_dhcp_server": SOME, INSUFFICIENT: GOOD}),
    Clue(awake_and_nobody_listened, {"image_or_dhcp_server": DECISIVE}),
    Clue(neighbours_were_served, {"image_or_dhcp_server": RARELY, "switch_port": LESS}),
)
