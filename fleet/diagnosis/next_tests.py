"""The cheapest next test: one whose answer divides the likely causes, or, where one is left, what mends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.causes import AT_THE_DESK, CAUSES
from duckfleet.fleet.diagnosis.findings import INSUFFICIENT, Cause, NextTest
from duckfleet.fleet.diagnosis.history import STILL_STARTING

CERTAIN = 0.8
LEAST_DIVISION = 0.15  # of the belief on the smaller side
DESK_MIN, WALK_MIN, WAIT_MIN = 5, 20, 5


@dataclass(frozen=True, slots=True)
class Test:
    """`positive`: the causes that its first outcome speaks for. `was_done` says that its answer is known already."""

    text: str
    cost_min: int
    positive: frozenset[str]
    was_done: Callable[[Case], bool] = lambda _case: False


def _asked(question: str) -> Callable[[Case], bool]:
    return lambda case: bool(case.answer(question))


LINK_SIDE = frozenset({"cable_unseated", "cable_bad", "switch_port", "nic_fault"})
OFF = frozenset({"no_power", "wol_disabled", "cpu_thermal"})
STUCK = frozenset({"dead_cmos_battery", "boot_order", "dimm_missing", "dimm_faulty", "hung_os", "image_or_dhcp_server"})

TESTS = (
    Test(
        "ask the switch for the port's state and speed", 1, LINK_SIDE | {"no_power"}, lambda case: case.port is not None
    ),
    Test("read the plug's watts", 1, OFF, lambda case: case.plug is not None),
    Test("read the last lines of the boot service's log", 2, frozenset({"image_or_dhcp_server"})),
    Test("restart duckd over ssh", 2, frozenset({"duckd_crashed", "storage_full"})),
    Test("read limits, governor and running processes over ssh", 2, frozenset({"cpu_power_limit", "cpu_slow_other"})),
    Test("read `dmidecode -t 17` and the memory's speed", 2, frozenset({"dimm_slow", "dimm_missing"})),
    Test("look at its power LED", 10, OFF, _asked("power_led")),
    Test("look at its link LED", 10, LINK_SIDE | OFF, _asked("link_led")),
    Test("push its network cable in", 10, frozenset({"cable_unseated"}), _asked("cable")),
    Test("listen whether its fan turns", 10, frozenset({"cpu_thermal"}), _asked("fan")),
    Test("press its button", 11, frozenset({"wol_disabled", "cpu_thermal"}), _asked("button")),
    Test("move it to another port of the switch", 12, frozenset({"switch_port"}), _asked("moved_to_other_port")),
    Test("swap its network cable", 13, frozenset({"cable_bad", "cable_unseated"}), _asked("swapped_cable")),
    Test("take a screen and a keyboard to it", 15, STUCK - {"dimm_missing", "dimm_faulty"}, _asked("screen")),
    Test("look at its screen for the boot order", 15, frozenset({"boot_order"}), _asked("screen")),
    Test("power-cycle it and wait for its request", 15, frozenset({"hung_os"})),
    Test("measure the coin cell (3 V)", 18, frozenset({"dead_cmos_battery"})),
    Test("reseat the memory module", 20, frozenset({"dimm_missing"})),
    Test("run the pattern test once more with another module", 30, frozenset({"dimm_faulty"})),
)


def next_test(causes: Sequence[Cause], case: Case) -> NextTest:
    """For causes in falling order of belief. Ties in cost go to the test that divides best."""
    known = [cause for cause in causes if cause.code != INSUFFICIENT]
    total = sum(cause.weight for cause in known)
    if not known and case.history.standing == STILL_STARTING:
        return NextTest("wait: a start takes some minutes", WAIT_MIN)
    if not known or total <= 0:
        return NextTest("look at its power LED, or add a source of evidence (switch by SNMP, smart plug)", 10)
    top = known[0]
    if top.weight / total < CERTAIN:
        useful = []
        for order, test in enumerate(TESTS):
            share = sum(cause.weight for cause in known if cause.code in test.positive) / total
            if min(share, 1 - share) >= LEAST_DIVISION and not test.was_done(case):
                useful.append((test.cost_min, -min(share, 1 - share), order, test))
        if useful:
            best = min(useful)[-1]
            return NextTest(best.text, best.cost_min)
    info = CAUSES[top.code]
    return NextTest(info.remedy, DESK_MIN if info.place == AT_THE_DESK else WALK_MIN)
