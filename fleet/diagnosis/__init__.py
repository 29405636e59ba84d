"""Diagnosis: observations, history and the fleet's baseline to ranked findings. Pure: no clock, network or files."""

from __future__ import annotations

from duckfleet.fleet.diagnosis.findings import Cause, Diagnosis, Evidence, Finding, Severity
from duckfleet.fleet.diagnosis.infer import diagnose
from duckfleet.fleet.diagnosis.look import Look, look_from_texts
from duckfleet.fleet.diagnosis.observation import Observed, Unreadable

__all__ = [
    "Cause",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Look",
    "Observed",
    "Severity",
    "Unreadable",
    "diagnose",
    "look_from_texts",
]
