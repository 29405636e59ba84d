"""Power by a person who walks to the box."""

from __future__ import annotations

from collections.abc import Callable

from duckfleet.fleet.errors import PowerError
from duckfleet.fleet.power.interface import Evidence
from duckfleet.inventory.site import Domain, Duck

Ask = Callable[[str], bool]
"""Shows a request to a person and says whether they did it."""


def nobody(_request: str) -> bool:
    """For runs without a terminal: there is no one to ask."""
    return False


class PersonPower:
    """Asks, and believes the answer."""

    def __init__(self, ask: Ask = nobody) -> None:
        self.ask = ask

    def on(self, duck: Duck, domain: Domain) -> Evidence:
        return self._request("switch on", duck)

    def off(self, duck: Duck, domain: Domain) -> Evidence:
        return self._request("switch off", duck)

    def cycle(self, duck: Duck, domain: Domain) -> Evidence:
        return self._request("switch off and on again", duck)

    def _request(self, action: str, duck: Duck) -> Evidence:
        place = f" at rack position {duck.rack}" if duck.rack else ""
        request = f"{action} duck {duck.name} ({duck.address}, {duck.mac}){place}"
        if not self.ask(request):
            raise PowerError(f"duck {duck.name}: nobody did it: {request}")
        return {"driver": "person", "request": request}
