"""Talk to ducks: one of them with its name in every error, or all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from duckfleet.inventory.errors import MachineError
from duckfleet.inventory.site import Duck, Site
from duckfleet.runtime.control import ControlClient, ProtocolViolation
from duckfleet.runtime.control.records import Identity
from duckfleet.runtime.wire import FleetKeys, WireFormatError

_T = TypeVar("_T")
MAX_AT_ONCE = 64


def connect(site: Site, duck: Duck, keys: FleetKeys | None, timeout_s: float = 5.0) -> ControlClient:
    """A control connection. Raises a `MachineError` that names the duck."""
    return ControlClient(duck.address, site.domain(duck.domain).control_port, keys, timeout_s, name=duck.name)


def identify(site: Site, duck: Duck, keys: FleetKeys | None, timeout_s: float = 2.0) -> Identity:
    """Who answers there."""
    with connect(site, duck, keys, timeout_s) as client:
        return client.identity()


def told_host_key(site: Site, duck: Duck, keys: FleetKeys | None) -> str:
    """The ssh host key that the duck's daemon states under the fleet's keys; empty: none, or it is silent."""
    if keys is None:
        return ""
    try:
        with connect(site, duck, keys) as client:
            said = client.probe(measure=False).get("ssh_host_key")
    except (MachineError, WireFormatError):
        return ""
    return said if isinstance(said, str) else ""


def on_all(
    ducks: Sequence[Duck],
    work: Callable[[Duck], _T],
    *,
    at_once: int = MAX_AT_ONCE,
    stop: Callable[[], None] = lambda: None,
) -> Iterator[tuple[Duck, _T | MachineError]]:
    """Run `work` for all ducks, `at_once` of them at a time; results as they come.

    A `MachineError` is a result, anything else is raised, once what is under way has ended: `stop` is called before, to
    end it soon (ctrl-C comes here).
    """
    if not ducks:
        return
    with ThreadPoolExecutor(min(at_once, len(ducks)), thread_name_prefix="duck") as pool:
        pending = {pool.submit(work, duck): duck for duck in ducks}
        try:
            for future in as_completed(pending):
                try:
                    yield pending[future], future.result()
                except MachineError as error:
                    yield pending[future], error
                except WireFormatError as error:
                    duck = pending[future].name
                    yield pending[future], ProtocolViolation(f"duck {duck} sent what this host cannot read: {error}")
        except BaseException:
            for future in pending:
                future.cancel()
            stop()
            raise
