"""A duck that does not answer at all. What little there is to see comes from outside and from its history."""

from __future__ import annotations

from collections.abc import Callable

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Evidence, Severity
from duckfleet.fleet.diagnosis.history import AFTER_WAKE, BY_ITSELF
from duckfleet.fleet.diagnosis.sources.raw import words
from duckfleet.fleet.diagnosis.tables import silent_history, silent_network, silent_outside
from duckfleet.fleet.diagnosis.tables.rows import Symptom

# Without any clue nothing can be said, and that stands first; every clue that says something takes weight from it.
AFTER_WAKE_PRIORS = {
    INSUFFICIENT: 1.0,
    "dead_cmos_battery": 0.18,
    "boot_order": 0.15,
    "wol_disabled": 0.15,
    "no_power": 0.12,
    "cable_unseated": 0.12,
    "switch_port": 0.06,
    "dimm_missing": 0.05,
    "image_or_dhcp_server": 0.04,
    "nic_fault": 0.04,
    "dimm_faulty": 0.04,
    "cable_bad": 0.03,
    "hung_os": 0.03,
    "cpu_thermal": 0.01,
}
BY_ITSELF_PRIORS = {
    INSUFFICIENT: 1.0,
    "hung_os": 0.24,
    "no_power": 0.2,
    "cable_unseated": 0.2,
    "switch_port": 0.1,
    "nic_fault": 0.06,
    "cable_bad": 0.06,
    "cpu_thermal": 0.05,
    "dimm_faulty": 0.04,
    "dead_cmos_battery": 0.03,
    "boot_order": 0.02,
    "wol_disabled": 0.02,
    "image_or_dhcp_server": 0.02,
    "dimm_missing": 0.01,
}


def daemon_is_gone(case: Case) -> bool:
    """The box answers, its daemon does not: not silent."""
    going = case.history.going
    if case.history.is_silent and silent_history.is_refused(case.history.last_error):
        return silent_network.asked_by_another_system(case) is None  # that one has no daemon of ours to miss
    if not case.fell_silent_by_itself or going is None or case.history.woken_at is not None:
        return False
    return silent_history.is_refused(words(going.get("error"))) or silent_history.shell_works(case)


def _silent(standing: str) -> Callable[[Case], tuple[Evidence, ...]]:
    def see(case: Case) -> tuple[Evidence, ...]:
        if case.history.standing != standing or daemon_is_gone(case):
            return ()
        return (case.tells(f"it {standing}", case.history.silent_since),)

    return see


CLUES = (*silent_history.CLUES, *silent_network.CLUES, *silent_outside.CLUES)

SYMPTOMS = (
    Symptom(
        "silent_after_wake",
        "was told to start and is not heard",
        Severity.CRITICAL,
        _silent(AFTER_WAKE),
        AFTER_WAKE_PRIORS,
        CLUES,
    ),
    Symptom("went_silent", "stopped answering", Severity.CRITICAL, _silent(BY_ITSELF), BY_ITSELF_PRIORS, CLUES),
)
