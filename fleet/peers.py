"""Have ducks fetch chunks from each other: a ticket for both, and what is waited for. Failures are said, not raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from duckfleet.fleet.reach import connect
from duckfleet.fleet.transfers import Transfer
from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.control import ControlClient, DuckRefused, PeerFailed, Ticket
from duckfleet.runtime.wire import ErrorCode, FleetKeys

MAX_TAKERS_A_GIVER = 2
MAX_FAILURES = 2
"""In a row: then a duck asks that giver for nothing more. Each may take `SILENCE_S`, and a shard has hundreds."""
SILENCE_S = 10.0
_LIMIT_S = 30.0  # and the time of a slow link and a busy duck
_LIMIT_BYTES_PER_S = 4e6


def fetch_chunk(
    site: Site, keys: FleetKeys | None, taker: ControlClient, giver: Duck, digest: str, num_bytes: int
) -> str:
    """Empty once `taker` has the chunk from `giver`, else why it has not; the message names both and the chunk.

    Raises a `MachineError` when the taker itself cannot go on.
    """
    ticket = Ticket.make(digest)
    limit_s = _LIMIT_S + num_bytes / _LIMIT_BYTES_PER_S
    try:
        with connect(site, giver, keys) as client:
            client.offer_chunk(ticket, round(limit_s))
    except MachineError as error:
        return f"duck {giver.name} could not be told to give chunk {digest[:12]}… to others: {error}"
    try:
        port = site.domain(giver.domain).control_port
        taker.fetch_chunk(ticket, giver.address, port, silence_s=SILENCE_S, limit_s=limit_s)
    except PeerFailed as error:
        return f"{error} (duck {giver.name})"
    except DuckRefused as error:
        if error.code != ErrorCode.UNKNOWN_TYPE:  # of an older duckd, which can only be sent chunks
            raise
        return str(error)
    return ""


def fetch_from_any(
    site: Site, keys: FleetKeys | None, taker: ControlClient, givers: Sequence[Duck], digest: str, num_bytes: int
) -> str:
    """As `fetch_chunk`, from the first of `givers` that can; the reasons of all when none can."""
    reasons = []
    for giver in givers:
        reason = fetch_chunk(site, keys, taker, giver, digest, num_bytes)
        if not reason:
            return ""
        reasons.append(reason)
    return "; ".join(reasons) or "no other duck holds it"


class Landings:
    """Which chunks have come to which duck while many are sent to many."""

    def __init__(self, held: Sequence[Collection[str]]) -> None:
        self._held = [set(one) for one in held]
        self._ended = [False] * len(held)
        self._changed = threading.Condition()
        self._giving = [threading.Semaphore(MAX_TAKERS_A_GIVER) for _ in held]

    def landed(self, place: int, digest: str) -> None:
        with self._changed:
            self._held[place].add(digest)
            self._changed.notify_all()

    def ended(self, place: int) -> None:
        """This duck gets no more from the host."""
        with self._changed:
            self._ended[place] = True
            self._changed.notify_all()

    def wait_for(self, place: int, digest: str) -> bool:
        """Until the duck has it; false when it will not get it any more."""
        with self._changed:
            self._changed.wait_for(lambda: digest in self._held[place] or self._ended[place])
            return digest in self._held[place]

    def giving(self, place: int) -> threading.Semaphore:
        """To be held while something is fetched from this duck."""
        return self._giving[place]


def fetch_all(
    site: Site,
    keys: FleetKeys | None,
    taker: Duck,
    transfers: Sequence[Transfer],
    givers: Mapping[int, Duck],
    landings: Landings,
    fetched: Callable[[Transfer], None],
) -> list[tuple[Transfer, str]]:
    """One duck's transfers from others, one after another, on a connection of its own. What did not come, with why.

    A giver that failed `MAX_FAILURES` times in a row is not asked again. Raises a `MachineError` when the taker itself
    cannot go on.
    """
    failed = []
    failures = dict.fromkeys(givers, 0)  # in a row
    with connect(site, taker, keys) as client:
        for transfer in transfers:
            assert transfer.giver is not None
            giver = givers[transfer.giver]
            if not landings.wait_for(transfer.giver, transfer.digest):
                failed.append((transfer, f"duck {giver.name} has not got it itself"))
                continue
            if failures[transfer.giver] >= MAX_FAILURES:
                failed.append(
                    (transfer, f"duck {giver.name} was not asked again: look at it with `duckctl probe {giver.name}`")
                )
                continue
            with landings.giving(transfer.giver):
                reason = fetch_chunk(site, keys, client, giver, transfer.digest, transfer.num_bytes)
            failures[transfer.giver] = failures[transfer.giver] + 1 if reason else 0
            if reason:
                failed.append((transfer, reason))
            else:
                fetched(transfer)
    return failed
