"""What is normal in this fleet: medians and MADs of last night, what the site file expects, the current firmware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from duckfleet.fleet.diagnosis.sources.raw import json_object, number, table, whole, words

FIGURES = (
    "mem_total_kb",
    "read_bytes_per_s",
    "write_bytes_per_s",
    "avx2_mhz",
    "package_temp_c",
    "rtt_us_p50",
    "link_mbps",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """A fleet's median of a measurement, and its median absolute deviation."""

    median: float
    mad: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What the site file says a duck has. None: not stated, nothing is concluded."""

    ram_mib: int | None = None
    num_dimms: int | None = None
    ram_mt_per_s: int | None = None
    link_mbps: int | None = None
    mtu: int | None = None
    num_cores: int | None = None
    power_limit_uw: int | None = None


@dataclass(frozen=True, slots=True)
class Firmware:
    version: str
    released: date | None


@dataclass(frozen=True, slots=True)
class Baseline:
    """Figures by the names of FIGURES and `kernel.<name>`; domains by name, the same figures."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    domains: Mapping[str, Mapping[str, Figure]] = field(default_factory=dict)
    expect: Expected = Expected()
    firmware: Mapping[str, Firmware] = field(default_factory=dict)  # by SMBIOS product name

    def figure(self, name: str, domain: str = "") -> Figure | None:
        """The domain's figure where there is one: a duck is first compared with those on its own switch."""
        return self.domains.get(domain, {}).get(name) or self.figures.get(name)


def parse(text: str) -> Baseline:
    fields = json_object(text)
    expect = table(fields, "expect")
    firmware = {
        product: Firmware(words(table(table(fields, "bios"), product).get("version")), _date(row))
        for product, row in table(fields, "bios").items()
    }
    return Baseline(
        _figures(fields),
        {domain: _figures(inner) for domain, inner in table(fields, "domains").items() if isinstance(inner, dict)},
        Expected(
            whole(expect.get("ram_mib")),
            whole(expect.get("dimms")),
            whole(expect.get("ram_mt_per_s")),
            whole(expect.get("link_mbps")),
            whole(expect.get("mtu")),
            whole(expect.get("cores")),
            whole(expect.get("power_limit_uw")),
        ),
        {product: entry for product, entry in firmware.items() if entry.version},
    )


def _figures(fields: Mapping[str, Any]) -> dict[str, Figure]:
    found = {}
    for name in FIGURES:
        figure = _figure(table(fields, name))
        if figure:
            found[name] = figure
    for kernel, inner in table(fields, "kernels_gb_per_s").items():
        figure = _figure(inner)
        if figure:
            found[f"kernel.{kernel}"] = figure
    return found


def _figure(fields: Any) -> Figure | None:
    median = number(fields.get("median")) if isinstance(fields, Mapping) else None
    return Figure(median, number(fields.get("mad")) or 0.0) if median else None


def _date(row: Any) -> date | None:
    text = words(row.get("date")) if isinstance(row, Mapping) else ""
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        return None
