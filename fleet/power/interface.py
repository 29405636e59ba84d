"""What every power driver does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from duckfleet.inventory.site import Domain, Duck

Evidence = Mapping[str, Any]


class PowerDriver(Protocol):
    """Switches one duck at a time and says what it did.

    Raises `PowerUnsupported` for an action that it cannot do at all, `PowerError` when it failed.
    """

    def on(self, duck: Duck, domain: Domain) -> Evidence: ...

    def off(self, duck: Duck, domain: Domain) -> Evidence: ...

    def cycle(self, duck: Duck, domain: Domain) -> Evidence: ...
