"""One receiver of reports, and how it says that a report did not arrive."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duckfleet.fleet.report.archive import Rendered
from duckfleet.inventory.errors import MachineError


class DeliveryFailed(MachineError):
    """A report did not arrive. `is_final`: the receiver refused it, trying again at once is of no use."""

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class Target(Protocol):
    """Somebody who gets reports."""

    @property
    def name(self) -> str:
        """Names it for a person, and across runs; without secrets."""

    @property
    def when(self) -> str:
        """`always`, or `findings`: only reports that have some."""

    def send(self, rendered: Rendered) -> None:
        """Raises `DeliveryFailed`."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A file with a password or token in it, read when it is needed."""

    path: str

    def read(self) -> str:
        try:
            return Path(self.path).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryFailed(f"{self.path}: cannot be read: {error}", is_final=True) from error
