"""Faults injected into virtual ducks, each found by `duckctl probe` and `explain`; a clean fleet has no finding.

The ducks keep time by instructions (QEMU, -icount), so what they measure does not depend on what else this machine
does. Two rounds of boots are shared by all tests, which stand in order; they leave the ducks as the tests of booting
want them.
"""

import json

import pytest

pytestmark = pytest.mark.timeout(900)  # three machines start in the first test's fixture
STEADY, HALF, SLOW, NARROW = "duck1101", "duck1102", "duck1103", "duck1105"  # HALF has UEFI
BOOT = ("--wait", "--timeout", "240")
PATIENT = ("--timeout", "240")  # three emulated machines share two cores with whatever else runs


def probe(lab, *names: str) -> dict[str, str]:
    """Verdicts by duck."""
    said = lab.duckctl("probe", *names, *PATIENT, "--json", code=None)
    return {one["duck"]: one["verdict"] for one in json.loads(said)}


@pytest.fixture(scope="module")
def clean(virtual_lab):
    """Three ducks without a fault, probed twice."""
    virtual_lab.duckctl("boot", STEADY, SLOW, NARROW, *BOOT)
    for _ in range(2):
        assert probe(virtual_lab, STEADY, SLOW, NARROW) == dict.fromkeys((STEADY, SLOW, NARROW), "healthy")
    return virtual_lab


def test_a_clean_fleet_has_no_finding(clean):
    for name in (STEADY, SLOW, NARROW):
        said = clean.explain(name)
        assert said["findings"] == [], said
        # What this machine has no hardware for is unknown, with its reason; and nothing is concluded from it.
        assert all(unknown["reason"] for unknown in said["unknown"])


def test_a_lossy_cable_is_found_and_forgotten_when_it_is_well(clean):
    clean.duckctl("lab", "fault", STEADY, "lossy_link")
    assert probe(clean, STEADY) == {STEADY: "degraded"}
    (first,) = clean.explain(STEADY)["findings"]
    assert first["code"] == "loss"
    # Whole frames, some of them gone, and no counter that says where: the cable or a queue.
    assert first["causes"][0]["code"] in ("cable_bad", "packet_loss_congestion")
    clean.duckctl("lab", "fault", STEADY, "lossy_link", "--off")
    assert probe(clean, STEADY) == {STEADY: "healthy"}
    assert clean.findings(STEADY) == {}


@pytest.fixture(scope="module")
def faulty(clean):
    """One fault each, from their next start on: a module, battery and clock; the processor; the cable."""
    for name, faults in ((HALF, ("missing_dimm", "default_rtc")), (SLOW, ("slow_cpu",)), (NARROW, ("slow_link",))):
        for fault in faults:
            clean.duckctl("lab", "fault", name, fault)
    clean.duckctl("off", SLOW, NARROW)
    clean.duckctl("boot", HALF, SLOW, NARROW, *BOOT)
    for _ in range(2):
        verdicts = probe(clean, STEADY, HALF, SLOW, NARROW)
    assert verdicts == {STEADY: "healthy", HALF: "degraded", SLOW: "degraded", NARROW: "degraded"}
    return clean


def test_a_module_that_is_not_seated_and_a_dead_battery(faulty):
    found = faulty.findings(HALF)
    assert list(found) == ["memory_short", "battery"]
    assert found["memory_short"][0] == "dimm_missing"
    assert found["battery"][0] == "dead_cmos_battery"


def test_a_slow_processor(faulty):
    found = faulty.findings(SLOW)
    assert list(found) == ["slow"]
    assert found["slow"][0] == "cpu_slow_other"


def test_a_slow_link(faulty):
    found = faulty.findings(NARROW)
    assert list(found) == ["link"]
    assert found["link"][0] == "cable_bad"


def test_the_healthy_one_among_them_has_no_finding(faulty):
    assert faulty.findings(STEADY) == {}


def test_the_walk_up_list_names_the_parts(faulty):
    text = faulty.duckctl("workorder", code=3)
    for word in (HALF, NARROW, "CR2032", "memory module", "network cable"):
        assert word in text
    assert STEADY not in text
