"""What a burn-in by stressapptest amounts to: passed, errors, or a test that was none. Pure.

The words are those of stressapptest(1): it tells a machine that computes wrongly from a test that could not be done.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

PASSED, ERRORS, PROCEDURE = "passed", "errors", "procedure"
_STATUS = re.compile(r"^Status: (PASS|FAIL)(?: - (.*))?$", re.MULTILINE)
_INCIDENTS = re.compile(r"^Stats: Found (\d{1,12}) hardware incidents", re.MULTILINE)
_ERROR_LINE = re.compile(r"(?:Hardware Error|miscompare|Report Error)[^\n]*", re.I)
MAX_LINES = 5
MAX_CHARS = 300  # of a line: what is kept of a box that may say anything


@dataclass(frozen=True, slots=True)
class BurnIn:
    """One test. `incidents`: how many errors it counted; `lines`: the first of them in its words."""

    result: str  # PASSED, ERRORS or PROCEDURE
    detail: str
    incidents: int = 0
    lines: tuple[str, ...] = ()


def read(output: str, return_code: int) -> BurnIn:
    """From what stressapptest printed and how it ended."""
    output = output.replace("\r", "")
    status = _STATUS.search(output)
    words = (status[2] or "")[:MAX_CHARS] if status else ""
    counted = _INCIDENTS.search(output)
    incidents = int(counted[1]) if counted else 0
    if incidents or "HW problems" in words:  # whatever else went wrong: it computed wrongly
        lines = tuple(" ".join(match[0][:MAX_CHARS].split()) for match in _ERROR_LINE.finditer(output))[:MAX_LINES]
        return BurnIn(ERRORS, f"{incidents} wrong results" if incidents else words, incidents, lines)
    if status and status[1] == "PASS" and return_code == 0:
        return BurnIn(PASSED, "no errors")
    return BurnIn(PROCEDURE, _why(output, return_code, words))


def _why(output: str, return_code: int, words: str) -> str:
    if return_code == 127 or "not found" in output:
        return "there is no stressapptest on it: run the playbook duck-setup first"
    errors = [line for line in output.splitlines() if re.search(r"Process Error|Error:|error|Killed", line)]
    said = " ".join((errors[0] if errors else words or "the test was cut short").split())
    return f"the test could not be done (exit code {return_code}): {said[:MAX_CHARS]}"
