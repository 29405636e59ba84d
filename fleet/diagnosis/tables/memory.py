"""Memory: too little of it, or wrong bits in it. (Slow memory shows as a slow box.)"""

from __future__ import annotations

import re
from collections import Counter

from duckfleet.fleet.diagnosis.case import Case
from duckfleet.fleet.diagnosis.findings import Evidence, Severity
from duckfleet.fleet.diagnosis.tables.rows import GOOD, HARDLY, LESS, RARELY, SOME, STRONG, Clue, Symptom

PRESENT_SHARE = 0.93  # of the fleet's median: firmware and graphics take 1-3 %
GRAPHICS_SHARE = 0.80  # where every module is there, firmware may have given this much away
MANY_CORRECTED = 10  # single corrected errors come from the sky
SAME_PAGE = 3  # and do not hit the same page again


def _fleet_kib(case: Case) -> float | None:
    figure = case.look.baseline.figure("mem_total_kb")
    expected = case.look.baseline.expect.ram_mib
    return figure.median if figure else expected * 1024.0 * 0.97 if expected else None


def _modules_fall_short(case: Case) -> bool | None:
    """Whether the firmware itself lists less than expected; None: it does not say."""
    smbios, expected = case.look.smbios.value, case.look.baseline.expect.ram_mib
    if smbios is None or smbios.total_mib is None or expected is None:
        return None
    return smbios.total_mib < PRESENT_SHARE * expected


def kernel_has_less(case: Case) -> Evidence | None:
    meminfo, usual = case.look.meminfo, _fleet_kib(case)
    if meminfo.value is None or usual is None:
        return None
    share = meminfo.value.total_kib / usual
    limit = GRAPHICS_SHARE if _modules_fall_short(case) is False else PRESENT_SHARE
    if share >= limit:
        return None
    return case.says(meminfo, f"{meminfo.value.total_kib:,} kB, {share:.0%} of what the fleet has")


def firmware_lists_less(case: Case) -> Evidence | None:
    smbios, expect = case.look.smbios, case.look.baseline.expect
    if smbios.value is None or not _modules_fall_short(case):
        return None
    found = ", ".join(f"{slot.locator}: {slot.size_mib or 'empty'}" for slot in smbios.value.slots)
    return case.says(smbios, f"{smbios.value.total_mib:,} of {expect.ram_mib:,} MiB ({found})")


def module_is_absent(case: Case) -> Evidence | None:
    smbios, expected = case.look.smbios, case.look.baseline.expect.num_dimms
    if smbios.value is None or expected is None or not smbios.value.slots:
        return None
    count = len(smbios.value.modules)
    if count >= expected:
        return None
    return case.says(smbios, f"{count} of {expected} modules are seen")


def modules_are_small(case: Case) -> Evidence | None:
    smbios, expected = case.look.smbios, case.look.baseline.expect.num_dimms
    if (
        smbios.value is None
        or expected is None
        or len(smbios.value.modules) < expected
        or not _modules_fall_short(case)
    ):
        return None
    return case.says(smbios, "every module is there, and they are smaller than those of the fleet")


def modules_are_all_there(case: Case) -> Evidence | None:
    if _modules_fall_short(case) is not False:
        return None
    return case.says(case.look.smbios, "the firmware lists all memory; the kernel was given less")


def memory_short(case: Case) -> tuple[Evidence, ...]:
    return tuple(sign for sign in (kernel_has_less(case), firmware_lists_less(case)) if sign)


def patterns_came_back_wrong(case: Case) -> Evidence | None:
    test = case.look.pattern_test
    if test.value is None or not test.value.errors:
        return None
    lines = test.value.same_bits.bit_count()
    where = f", the same {lines} bit{'s' * (lines > 1)} in all" if lines else ""
    return case.says(test, f"{len(test.value.errors)} errors in {test.value.tested_bytes / 1e9:.1f} GB{where}")


def errors_were_counted(case: Case) -> Evidence | None:
    edac = case.look.edac
    if edac.value is None or not (edac.value.uncorrected or edac.value.corrected >= MANY_CORRECTED):
        return None
    return case.says(edac, f"{edac.value.corrected} corrected, {edac.value.uncorrected} uncorrected errors")


def machine_checked_memory(case: Case) -> Evidence | None:
    checks, log = case.look.machine_checks, case.look.kernel_log
    for observed, records in (
        (checks, checks.value.logged if checks.value else ()),
        (log, log.value.machine_checks if log.value else ()),
    ):
        for record in records:
            if record.is_memory and record.is_uncorrected:
                return case.says(observed, f"uncorrected memory error, bank {record.bank}, status {record.status:#x}")
        corrected = sum(record.num_corrected for record in records if record.is_memory)
        if corrected >= MANY_CORRECTED:
            return case.says(observed, f"{corrected} corrected memory errors in {len(records)} machine checks")
    return None


def pages_were_poisoned(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("memory_uncorrected") if log.value else ()
    return case.says(log, marks[-1].line) if marks else None


def corrected_in_log(case: Case) -> Evidence | None:
    log = case.look.kernel_log
    marks = log.value.of("memory_corrected") if log.value else ()
    pages = Counter(page[1] for mark in marks if (page := re.search(r"page:(0x[0-9a-f]{1,16})", mark.line)))
    same = max(pages.values(), default=0)
    if len(marks) < MANY_CORRECTED and same < SAME_PAGE:
        return None
    return case.says(log, f"{len(marks)} corrected errors logged, {same} of them on one page")


def burn_in_found_errors(case: Case) -> Evidence | None:
    """The last burn-in that took place; one that could not be done says nothing, and one that passed ends it."""
    for event in reversed(case.look.events.value or ()):
        result = event.evidence.get("result") if event.event == "burn_in" else None
        if result in ("passed", "errors"):
            told = f"burn-in: {event.evidence.get('detail')}"
            return case.tells(told, event.at) if result == "errors" else None
    return None


def memory_errors(case: Case) -> tuple[Evidence, ...]:
    signs = (
        patterns_came_back_wrong(case),
        errors_were_counted(case),
        machine_checked_memory(case),
        pages_were_poisoned(case),
        corrected_in_log(case),
        burn_in_found_errors(case),
    )
    return tuple(sign for sign in signs if sign)


SYMPTOMS = (
    Symptom(
        "memory_errors",
        "memory returns wrong bits",
        Severity.CRITICAL,
        memory_errors,
        {"dimm_faulty": 0.9, "dimm_missing": 0.04, "dimm_slow": 0.03, "cpu_thermal": 0.03},
        (
            Clue(patterns_came_back_wrong, {"dimm_faulty": GOOD}),
            Clue(errors_were_counted, {"dimm_faulty": GOOD}),
            Clue(machine_checked_memory, {"dimm_faulty": GOOD}),
            Clue(pages_were_poisoned, {"dimm_faulty": GOOD}),
            Clue(burn_in_found_errors, {"dimm_faulty": GOOD}),
        ),
    ),
    Symptom(
        "memory_short",
        "has less memory than it should",
        Severity.DEGRADED,
        memory_short,
        {"dimm_missing": 0.65, "dimm_slow": 0.2, "dimm_faulty": 0.1, "bios_outdated": 0.05},
        (
            Clue(module_is_absent, {"dimm_missing": STRONG, "dimm_slow": HARDLY, "bios_outdated": RARELY}),
            Clue(modules_are_small, {"dimm_slow": STRONG, "dimm_missing": RARELY, "dimm_faulty": RARELY}),
            Clue(modules_are_all_there, {"dimm_faulty": SOME, "bios_outdated": SOME, "dimm_slow": RARELY}),
            Clue(patterns_came_back_wrong, {"dimm_faulty": GOOD}),
            Clue(errors_were_counted, {"dimm_faulty": GOOD, "dimm_missing": LESS}),
        ),
    ),
)
