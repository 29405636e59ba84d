"""duckd's `--probe` report as observations: the same records that raw texts are parsed into. Pure.

What the report says under `unknown`, or leaves out, stays unknown with its reason. Raw texts that were collected beside
it (`texts`, by the file names of `look_from_texts`) are taken first: they say more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from duckfleet.fleet.diagnosis.observation import Observed
from duckfleet.fleet.diagnosis.sources.clock.rtc_status import RtcStatus
from duckfleet.fleet.diagnosis.sources.link.ethtool import LinkSettings
from duckfleet.fleet.diagnosis.sources.link.ethtool_statistics import CounterRises, rises
from duckfleet.fleet.diagnosis.sources.link.ip_link import Interface
from duckfleet.fleet.diagnosis.sources.memory.dmidecode import MemorySlot, Smbios, identity
from duckfleet.fleet.diagnosis.sources.memory.meminfo import Meminfo
from duckfleet.fleet.diagnosis.sources.raw import moment, number, rows, table, whole, words

SOURCE = "duckd"


@dataclass(frozen=True, slots=True)
class Report:
    """One probe report and when it was made."""

    values: Mapping[str, Any]
    at: datetime

    @classmethod
    def of(cls, values: Mapping[str, Any], finished_at_s: float) -> Report:
        """The host's time: the duck's own clock is one of the things in question."""
        return cls(values, datetime.fromtimestamp(finished_at_s, UTC))

    def reason(self, *prefixes: str) -> str:
        """Why the duck could not read something, in its own words."""
        return self._said(prefixes) or f"not in the report ({prefixes[0]})"

    def mentions(self, *prefixes: str) -> bool:
        """Whether the duck tried to read it and could not; otherwise this probe did not ask for it."""
        return bool(self._said(prefixes))

    def _said(self, prefixes: tuple[str, ...]) -> str:
        for row in rows(self.values, "unknown"):
            what = words(row.get("what")) if isinstance(row, Mapping) else ""
            if any(what == prefix or what.startswith(prefix + ".") for prefix in prefixes):
                return f"{what}: {words(row.get('reason'))}"
        return ""


def meminfo(report: Report) -> Observed[Meminfo]:
    total = whole(table(report.values, "memory").get("total_bytes"))
    if not total or total < 1024:
        return Observed(SOURCE, report.at, None, report.reason("memory"))
    return Observed(SOURCE, report.at, Meminfo(total // 1024))


def smbios(report: Report) -> Observed[Smbios]:
    board, modules = table(report.values, "board"), table(report.values, "memory").get("modules")
    slots = tuple(_slot(row) for row in modules if isinstance(row, Mapping)) if isinstance(modules, list) else ()
    product, version = words(board.get("product_name")), words(board.get("bios_version"))
    if not slots and not product and not version:
        return Observed(SOURCE, report.at, None, report.reason("memory.modules", "board"))
    serial = identity(words(board.get("product_serial")))
    released = bios_date(words(board.get("bios_date")))
    return Observed(SOURCE, report.at, Smbios(version, released, product, serial, slots))


def _slot(row: Mapping[str, Any]) -> MemorySlot:
    size = whole(row.get("size_bytes"))
    return MemorySlot(
        words(row.get("locator")),
        None if size is None else size >> 20,
        whole(row.get("speed_mt_per_s")),
        whole(row.get("configured_mt_per_s")),
        words(row.get("part_number")),
    )


def bios_date(text: str) -> date | None:
    """`03/18/2024`, as SMBIOS writes it."""
    try:
        return datetime.strptime(text.strip(), "%m/%d/%Y").date()
    except ValueError:
        return None


def rtc_status(report: Report) -> Observed[RtcStatus]:
    clock = table(report.values, "clock")
    time = moment(f"{words(clock.get('rtc_date'))}T{words(clock.get('rtc_time'))}")
    since_epoch = number(clock.get("since_epoch_s"))
    if time is None and since_epoch is not None and 0 <= since_epoch < 2**33:
        time = datetime.fromtimestamp(since_epoch, UTC)
    battery = words(clock.get("batt_status"))
    battery = battery if battery in ("okay", "dead") else ""
    if time is None and not battery:
        return Observed(SOURCE, report.at, None, report.reason("clock"))
    return Observed(SOURCE, report.at, RtcStatus(time, battery))


def nic_of(report: Report, mac: str) -> Mapping[str, Any] | None:
    """The card with this MAC. None too where the duck is a process that has no card of its own."""
    cards = [row for row in rows(report.values, "nics") if isinstance(row, Mapping)]
    return next((card for card in cards if mac and words(card.get("mac")).lower() == mac), None)


def link(report: Report, mac: str) -> Observed[LinkSettings]:
    card = nic_of(report, mac)
    if card is None:
        return Observed(SOURCE, report.at, None, f"the report has no interface {mac}")
    settings = LinkSettings(
        device_gone=card.get("device_gone") is True,
        speed_mbps=whole(card.get("speed_mbit_per_s")),
        full_duplex={"full": True, "half": False}.get(words(card.get("duplex"))),
        link=_flag(card.get("carrier")),
        autonegotiation=_boolean(card.get("autonegotiation")),
        offered_mbps=whole(card.get("offered_mbit_per_s")),
        partner_mbps=whole(card.get("partner_mbit_per_s")),
        wake_supported=words(card.get("wake_supported")),
        wake_on=words(card.get("wake_on")),
    )
    if settings == LinkSettings(device_gone=False):
        return Observed(SOURCE, report.at, None, report.reason(f"nics.{words(card.get('name'))}", "nics"))
    return Observed(SOURCE, report.at, settings)


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    return {1: True, 0: False}.get(value) if isinstance(value, int) else None


def interfaces(report: Report, mac: str) -> Observed[tuple[Interface, ...]]:
    card = nic_of(report, mac)
    mtu = whole(card.get("mtu")) if card else None
    if card is None or mtu is None:
        return Observed(SOURCE, report.at, None, f"the report has no interface {mac}")
    carrier = _flag(card.get("carrier"))
    changes = whole(card.get("carrier_changes"))
    return Observed(SOURCE, report.at, (Interface(words(card.get("name")), mac, carrier, mtu, changes),))


def counters(earlier: Report | None, later: Report, mac: str) -> Observed[CounterRises]:
    """Rises over the burst; where none was sent, between two probes of the same boot."""
    load = table(later.values, "load")
    over_burst = tuple(Report({"nics": rows(load, when)}, later.at) for when in ("before", "after"))
    before, after = (nic_of(one, mac) for one in over_burst)
    if before is not None and after is not None:
        earlier, later = (Report({**later.values, **one.values}, later.at) for one in over_burst)
    else:
        before, after = nic_of(earlier, mac) if earlier else None, nic_of(later, mac)
    if earlier is None or before is None or after is None:
        return Observed(SOURCE, later.at, None, "there is no earlier probe to compare counters with")
    if words(earlier.values.get("boot_id")) != words(later.values.get("boot_id")):
        return Observed(SOURCE, later.at, None, "it was started anew since the earlier probe")
    first, second = _all_counters(before), _all_counters(after)
    shared = first.keys() & second.keys()
    if not shared:
        return Observed(SOURCE, later.at, None, later.reason("nics"))
    return Observed(
        SOURCE, later.at, rises({name: first[name] for name in shared}, {name: second[name] for name in shared})
    )


def _all_counters(card: Mapping[str, Any]) -> dict[str, int]:
    """The kernel's own and the driver's; where both have a name, the driver's: it is nearer to the chip."""
    return {**_numbers(table(card, "counters")), **_numbers(table(card, "driver_counters"))}


def _numbers(fields: Mapping[str, Any]) -> dict[str, int]:
    found = {name: whole(value) for name, value in fields.items()}
    return {name: value for name, value in found.items() if value is not None and value >= 0}


def texts(report: Report) -> dict[str, str]:
    """Raw texts that came with the report, by file name."""
    return {name: text for name, text in table(report.values, "texts").items() if isinstance(text, str)}
