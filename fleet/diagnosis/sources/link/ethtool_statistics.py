"""`ethtool -S` before and after a burst, as rises. Drivers name the same thing differently, and counters wrap.

Widths: r8169 copies a tally block of fixed layout from the chip (rx_errors, collisions, multicast 32 bits; rx_missed,
align_errors, tx_aborted, tx_underrun 16). A counter that fell has wrapped, or the driver began anew: then all fell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from duckfleet.fleet.diagnosis.observation import Unreadable
from duckfleet.fleet.diagnosis.sources.raw import not_an_answer

WIDTHS = (16, 32, 64)
PLAUSIBLE_SHARE = 4  # a burst raises a counter by less than this part of its range

# igc, igb, e1000e, r8169 and its vendor's driver, atlantic, tg3, alx, stmmac, mlx5: prefixes of the unit that counts,
# the same words.
_UNIT = r"(?:port\.|mac_|mmc_|nic_)?"
BROKEN_FRAMES = re.compile(
    _UNIT + r"(?:rx_)?(?:crc|fcs|align(?:ment)?|symbol|frame|code|mac|bad_fcs)_err(?:or)?s?(?:32|_phy)?"
)
ALL_RECEIVE_ERRORS = "rx_errors"
WRONG_LENGTHS = ("rx_length_errors", "rx_long_length_errors", "rx_short_length_errors", "rx_frame_too_long", "rx_runt")
FULL_QUEUES = re.compile(
    _UNIT + r"rx_(?:missed(?:_errors)?|mac_missed|no_buffer_count|no_dma_resources|fifo(?:_errors)?|over_errors"
    r"|discards(?:_phy)?|out_of_buffer|hw_drops|queue_[0-9]+_drops)"
)
STUCK_TRANSMITTER = ("tx_timeout_count", "tx_dma_out_of_sync")
LATE_COLLISIONS = ("tx_abort_late_coll", "late_collisions")


@dataclass(frozen=True, slots=True)
class CounterRises:
    """How much each kind of trouble rose over the burst."""

    broken_frames: int  # CRC, alignment: damaged on the way
    dropped_by_full_queues: int
    transmitter_stuck: int
    late_collisions: int
    rx_packets: int | None
    restarted: bool  # the driver was loaded anew in between: rises count from there


def counters(text: str) -> dict[str, int]:
    """`name: value` lines. Raises `Unreadable` where there are none."""
    found = dict(re.findall(r"^\s+(\S[^:\n]*): ([0-9]{1,20})\s*$", text, re.MULTILINE))
    if not found:
        raise not_an_answer(text)
    return {name: int(value) for name, value in found.items()}


def parse(texts: tuple[str, str]) -> CounterRises:
    """Of the two texts, before and after. Raises `Unreadable` when either has no counters, or they share none."""
    before, after = counters(texts[0]), counters(texts[1])
    shared = before.keys() & after.keys()
    if not shared:
        raise Unreadable("before and after name different counters")
    return rises({name: before[name] for name in shared}, {name: after[name] for name in shared})


def rises(before: Mapping[str, int], after: Mapping[str, int]) -> CounterRises:
    """Rises of counters that both have."""
    restarted = was_restarted(before, after)
    rise = {name: after[name] if restarted else wrapped_rise(before[name], after[name]) for name in after}

    def total(names: tuple[str, ...]) -> int:
        return sum(rise.get(name, 0) for name in names)

    def matching(pattern: re.Pattern[str]) -> int:
        return sum(value for name, value in rise.items() if pattern.fullmatch(name))

    queues = matching(FULL_QUEUES)
    # r8169 has no counter of CRC errors: they are in the sum of all, and nowhere else.
    unnamed = rise.get(ALL_RECEIVE_ERRORS, 0) - queues - total(WRONG_LENGTHS)
    return CounterRises(
        max(matching(BROKEN_FRAMES), unnamed),
        queues,
        total(STUCK_TRANSMITTER),
        total(LATE_COLLISIONS),
        rise.get("rx_packets"),
        restarted,
    )


def wrapped_rise(before: int, after: int) -> int:
    """The rise of a counter that may have wrapped at 16, 32 or 64 bits."""
    if after >= before:
        return after - before
    width = next(width for width in (*WIDTHS, 128) if before < 1 << width)
    return (after - before) % (1 << width)


def was_restarted(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether the driver began anew: counters fell so far that wrapping would need an implausible rise."""
    fallen = [name for name in after if after[name] < before[name]]
    implausible = 0
    for name in fallen:
        width = next(width for width in (*WIDTHS, 128) if before[name] < 1 << width)
        implausible += wrapped_rise(before[name], after[name]) > (1 << width) // PLAUSIBLE_SHARE
    return implausible > 0 and implausible * 2 >= len(fallen)
