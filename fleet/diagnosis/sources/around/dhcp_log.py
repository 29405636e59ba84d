"""dnsmasq's lines of a domain: who asked, as what, what it was told, which files went out, when the server was deaf."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from duckfleet.fleet.diagnosis.sources.raw import moment, not_an_answer

FIRMWARE_CLASSES = ("PXEClient", "HTTPClient", "iPXE")
OUR_SYSTEM_CLASS = "udhcp"  # busybox, in the duck image
REFUSALS = (
    "no address available",
    "ignored",
    "no address range available",
    "disabled",
    "no leases left",
    "wrong network",
)


@dataclass(frozen=True, slots=True)
class DhcpAsk:
    """One request for an address."""

    at: datetime
    mac: str
    vendor_class: str  # empty: not logged
    client_name: str
    answered: bool  # offered or acknowledged
    acknowledged: bool
    refusal: str

    @property
    def is_other_system(self) -> bool:
        """Asked by an operating system that is not ours: firmware and our image say who they are."""
        if not self.vendor_class:
            return bool(self.client_name)  # firmware has no name to give
        return not self.vendor_class.startswith((*FIRMWARE_CLASSES, OUR_SYSTEM_CLASS))


@dataclass(frozen=True, slots=True)
class BootFile:
    """A boot file asked for by TFTP. `failure` is empty where it went out whole; `address` where the log names none."""

    at: datetime
    name: str
    address: str
    failure: str


@dataclass(frozen=True, slots=True)
class DhcpLog:
    watched_from: datetime
    watched_to: datetime
    asks: tuple[DhcpAsk, ...]
    files: tuple[BootFile, ...]
    deaf_s: float  # how long in the window no server ran

    def asks_of(self, mac: str) -> tuple[DhcpAsk, ...]:
        return tuple(ask for ask in self.asks if ask.mac == mac)

    @property
    def deaf_share(self) -> float:
        window_s = (self.watched_to - self.watched_from).total_seconds()
        return self.deaf_s / window_s if window_s > 0 else 0.0


def parse(text: str) -> DhcpLog:
    """The first line states the window. Raises `Unreadable` without it."""
    window = re.match(r"# watched (\S+) to (\S+) on ", text)
    start, end = (moment(window[1]), moment(window[2])) if window else (None, None)
    if start is None or end is None:
        raise not_an_answer(text)
    reader = _Reader(start, end)
    for line in text.splitlines()[1:]:
        reader.read(line)
    return reader.log()


LINE = re.compile(r"([A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}) \S+ (dnsmasq\S*)\[[0-9]+\]: (.*)$")
PACKET = re.compile(r"(?:[0-9]+ )?DHCP(DISCOVER|OFFER|REQUEST|ACK|NAK|DECLINE)\(\S+\) (.*)$")
MAC = re.compile(r"\b([0-9a-f]{2}(?::[0-9a-f]{2}){5})\b")


class _Reader:
    """Collects asks while lines go by: a discover opens one, the lines of its transaction describe it."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._start, self._end = start, end
        self._asks: list[DhcpAsk] = []
        self._files: list[BootFile] = []
        self._vendor: dict[str, str] = {}  # by transaction
        self._name: dict[str, str] = {}
        self._deaf_since: datetime | None = None
        self._deaf_s = 0.0
        self._was_up = False

    def read(self, line: str) -> None:
        match = LINE.match(line)
        at = self._time(match[1]) if match else None
        if match is None or at is None:
            return
        message = match[3]
        self._read_server(at, message)
        transaction = re.match(r"([0-9]+) (vendor class|client provides name): (.*)$", message)
        if transaction:
            (self._vendor if transaction[2] == "vendor class" else self._name)[transaction[1]] = transaction[3].strip()
        packet = PACKET.match(message)
        if packet:
            self._read_packet(at, message, packet[1], packet[2])
        elif "tftp" in match[2]:
            self._read_file(at, message)

    def _read_server(self, at: datetime, message: str) -> None:
        if message.startswith("exiting on receipt"):
            self._deaf_since = at
        elif message.startswith("started, version"):
            since = self._deaf_since if self._deaf_since or self._was_up else self._start
            self._deaf_s += (at - since).total_seconds() if since else 0.0
            self._deaf_since = None
        self._was_up = True

    def _read_packet(self, at: datetime, message: str, kind: str, rest: str) -> None:
        mac = MAC.search(rest)
        if mac is None:
            return
        if kind == "DISCOVER" or (kind == "REQUEST" and not any(ask.mac == mac[1] for ask in self._asks)):
            number = message.split(" ")[0]
            refusal = next((text for text in REFUSALS if text in rest), "")
            vendor, name = self._vendor.get(number, ""), self._name.get(number, "")
            self._asks.append(DhcpAsk(at, mac[1], vendor, name, False, False, refusal))
            return
        for index in range(len(self._asks) - 1, -1, -1):
            ask = self._asks[index]
            if ask.mac == mac[1]:
                self._asks[index] = _told(ask, kind)
                return

    def _read_file(self, at: datetime, message: str) -> None:
        for pattern, failure in (
            (r"sent (\S+) to (\S+)", ""),
            (r"file (\S+) not found for (\S+)", "not found"),
            (r"failed sending (\S+) to (\S+)", "not delivered whole"),
            (r"cannot (?:access|read) (\S+?):? .*?((?:[0-9]+\.){3}[0-9]+|)$", "cannot be read"),
        ):
            match = re.match(pattern, message)
            if match:
                self._files.append(BootFile(at, match[1], match[2], failure))
                return
        aborted = re.match(r"error [0-9]+ (.*) received from (\S+)", message)
        if aborted:
            self._files.append(BootFile(at, "", aborted[2], aborted[1]))

    def _time(self, text: str) -> datetime | None:
        """dnsmasq writes no year: take the one that puts the line next to the window."""
        for year in (self._start.year, self._end.year, self._start.year - 1):
            try:
                at = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
            except ValueError:
                continue
            if self._start - timedelta(days=2) <= at <= self._end + timedelta(days=2):
                return at
        return None

    def log(self) -> DhcpLog:
        deaf_s = self._deaf_s
        if self._deaf_since is not None:
            deaf_s += max(0.0, (self._end - self._deaf_since).total_seconds())
        return DhcpLog(self._start, self._end, tuple(self._asks), tuple(self._files), max(0.0, deaf_s))


def _told(ask: DhcpAsk, kind: str) -> DhcpAsk:
    answered = ask.answered or kind in ("OFFER", "ACK")
    acknowledged = ask.acknowledged or kind == "ACK"
    refusal = "refused" if kind == "NAK" else ask.refusal
    return DhcpAsk(ask.at, ask.mac, ask.vendor_class, ask.client_name, answered, acknowledged, refusal)
