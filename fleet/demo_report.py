"""What the demo measured: how the answer came, and where the time of a forward went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

PARTS = ("prepare", "send", "wait", "fetch")


@dataclass(frozen=True, slots=True)
class Answer:
    """A streamed answer, as its client saw it. Times count from sending the request."""

    text: str
    num_tokens: int
    first_token_s: float
    last_token_s: float

    @property
    def tokens_per_s(self) -> float:
        """Of the tokens after the first."""
        span_s = self.last_token_s - self.first_token_s
        return (self.num_tokens - 1) / span_s if self.num_tokens > 1 and span_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class FabricCounts:
    """The fabric's part of the server's metrics, at one moment."""

    num_forwards: float
    seconds: Mapping[str, float]  # by part, in all
    times_last: Mapping[str, float]  # by duck: how often its reply was the last to come

    @classmethod
    def from_metrics(cls, text: str) -> FabricCounts:
        """From the text of /metrics; what is not there counts as 0."""
        from prometheus_client.parser import text_string_to_metric_families

        num_forwards, seconds, last = 0.0, dict.fromkeys(PARTS, 0.0), {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == "duckfleet_fabric_forwards":
                    num_forwards = sample.value
                elif sample.name == "duckfleet_fabric_seconds_total":
                    seconds[sample.labels["part"]] = sample.value
                elif sample.name == "duckfleet_fabric_duck_times_last":
                    last[sample.labels["duck"]] = sample.value
        return cls(num_forwards, seconds, last)


@dataclass(frozen=True, slots=True)
class DuckShare:
    """What one duck did for the answer."""

    duck: str
    weight_bytes: int  # read by its kernels
    compute_p50_us: float
    last_share: float = 0.0  # of the forwards: in so many it was the last to answer


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the demo's table shows."""

    answer: Answer
    num_forwards: int  # of FFN layers
    part_us: Mapping[str, float]  # of a forward, by part
    shares: tuple[DuckShare, ...]

    @property
    def slowest_duck(self) -> str:
        """The one that was most often the last to answer."""
        return max(self.shares, key=lambda share: share.last_share).duck


class WordWrap:
    """Breaks streamed text between words: the word under way is held back until it is whole."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._column = 0
        self._word = ""

    def feed(self, piece: str) -> str:
        """What can be shown now."""
        shown = ""
        for char in piece:
            if char in " \n":
                shown += self.flush() + self._blank(char)
            else:
                self._word += char
        return shown

    def flush(self) -> str:
        """The word under way, on a new line if it does not fit on this one."""
        word, self._word = self._word, ""
        breaks = bool(word) and self._column > 0 and self._column + len(word) > self.width
        self._column = (0 if breaks else self._column) + len(word)
        return ("\n" if breaks else "") + word

    def _blank(self, char: str) -> str:
        self._column = 0 if char == "\n" else self._column + 1
        return char


def weight_bytes_of(stats: Mapping[str, Any]) -> int:
    """Bytes of weights that a duck has read, from its statistics; 0 where it does not say."""
    data = stats.get("data")
    value = data.get("weight_bytes") if isinstance(data, dict) else None
    return value if isinstance(value, int) else 0


def compute_p50_us_of(stats: Mapping[str, Any]) -> float:
    data = stats.get("data")
    compute = data.get("compute") if isinstance(data, dict) else None
    value = compute.get("p50_us") if isinstance(compute, dict) else None
    return float(value) if isinstance(value, int | float) else 0.0


def make_report(answer: Answer, before: FabricCounts, after: FabricCounts, shares: Sequence[DuckShare]) -> Report:
    """What lies between two looks at the metrics."""
    num_forwards = int(after.num_forwards - before.num_forwards)
    part_us = {part: 1e6 * (after.seconds[part] - before.seconds[part]) / max(1, num_forwards) for part in PARTS}
    last = {duck: count - before.times_last.get(duck, 0.0) for duck, count in after.times_last.items()}
    total = max(1.0, sum(last.values()))
    shares = tuple(replace(share, last_share=last.get(share.duck, 0.0) / total) for share in shares)
    return Report(answer, num_forwards, part_us, shares)
