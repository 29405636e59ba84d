"""What placement, the roster and the trends need of a probe report: a few numbers and names. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from duckfleet.inventory.site import Expectations

KERNEL_PREFIX = "kernel."
"""Measurements of kernels are called by it and the kernel's name."""
RAM_TOLERANCE = 0.93
"""Firmware and graphics take part of the RAM: a duck with less than this share of the stated amount lacks a module."""


@dataclass(frozen=True, slots=True)
class ProbeFacts:
    """What placement and the roster need of a probe report. 0: the duck did not say."""

    ram_bytes: int
    num_threads: int
    read_bandwidth_bytes_per_s: float
    cpu: str
    kernels: str
    duckd_version: str = ""


def facts_of(report: Mapping[str, Any]) -> ProbeFacts:
    """Pick the facts out of duckd's report and identity; anything absent or of a wrong type is 0 or empty."""
    memory = _table(report, "memory")
    cpu = _table(report, "cpu")
    identity = _table(report, "identity")
    bandwidth = _table(_table(report, "measured"), "read_bandwidth")
    return ProbeFacts(
        ram_bytes=int(_number(memory, "total_bytes")),
        num_threads=int(_number(identity, "num_threads")),
        read_bandwidth_bytes_per_s=_number(bandwidth, "bytes_per_s"),
        cpu=_text(cpu, "model"),
        kernels=_text(identity, "kernels"),
        duckd_version=_text(identity, "duckd_version"),
    )


def shortcomings(expect: Expectations, facts: ProbeFacts) -> tuple[str, ...]:
    """Where a duck has less than the site file expects; what it did not say is not held against it."""
    found = []
    if expect.ram_bytes is not None and facts.ram_bytes and facts.ram_bytes < RAM_TOLERANCE * expect.ram_bytes:
        found.append(f"has {facts.ram_bytes / 2**30:.1f} GiB of RAM, {expect.ram_bytes / 2**30:g} expected")
    if expect.cpu is not None and facts.cpu and expect.cpu.lower() not in facts.cpu.lower():
        found.append(f"has a {facts.cpu}, {expect.cpu} expected")
    return tuple(found)


def measured(report: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """The numbers worth keeping over time: name -> (value, unit). What was not measured is not there."""
    rates = _table(report, "measured")
    numbers = {
        "read_bandwidth": (_number(_table(rates, "read_bandwidth"), "bytes_per_s"), "B/s"),
        "write_bandwidth": (_number(_table(rates, "write_bandwidth"), "bytes_per_s"), "B/s"),
        "ram": (_number(_table(report, "memory"), "total_bytes"), "B"),
        "avx2_mhz": (_avx2_mhz(_table(rates, "frequency")), "MHz"),
        "package_temp_c": (_package_c(_table(report, "heat_loaded")), "°C"),
        "rtt_us_p50": (_number(_table(_table(report, "burst"), "rtt_us"), "p50"), "us"),
    }
    for name, figures in _table(_table(rates, "kernels"), "gb_per_s").items():
        numbers[f"{KERNEL_PREFIX}{name}"] = (_later_median(figures), "GB/s")
    return {name: (value, unit) for name, (value, unit) in numbers.items() if value > 0}


def _later_median(figures: Any) -> float:
    """Of the later half: the first seconds are the turbo's."""
    values = [float(value) for value in figures if _is_number(value)] if isinstance(figures, list) else []
    return statistics.median(values[len(values) // 2 :]) if values else 0.0


def _avx2_mhz(frequency: Mapping[str, Any]) -> float:
    """The median of the later half of the samples, over all cores."""
    samples = frequency.get("samples")
    later = samples[len(samples) // 2 :] if isinstance(samples, list) else []
    values = [float(mhz) for row in later if isinstance(row, dict) for mhz in _list(row, "mhz") if _is_number(mhz)]
    return statistics.median(values) if values else 0.0


def _package_c(heat: Mapping[str, Any]) -> float:
    zones = [zone for zone in _list(heat, "zones") if isinstance(zone, dict)]
    return max((_number(zone, "celsius") for zone in zones if zone.get("type") == "x86_pkg_temp"), default=0.0)


def _table(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _number(value: Mapping[str, Any], key: str) -> float:
    inner = value.get(key)
    return float(inner) if inner is not None and _is_number(inner) else 0.0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    inner = value.get(key)
    return inner if isinstance(inner, list) else []


def _text(value: Mapping[str, Any], key: str) -> str:
    inner = value.get(key)
    return inner if isinstance(inner, str) else ""
