"""What the boot service saw, by dnsmasq's log or by HTTP: one frozen record an event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

KINDS = (
    "dhcp_request",  # asked for an address; `stage` says what asked
    "dhcp_ignored",  # asked and got no answer; `reason` says why
    "dhcp_lease",  # an address was given (or its lease renewed)
    "tftp_sent",  # a boot loader was delivered whole
    "tftp_failed",
    "script_sent",  # told what to boot
    "file_sent",  # a kernel or a layer was delivered whole
    "file_aborted",  # ... or not
    "reported",  # the image's own report; `stage` is `up` or `ready`
    "http_refused",  # asked for what is not there
)

STAGES = ("firmware", "ipxe", "system")


@dataclass(frozen=True, slots=True)
class BootEvent:
    """One thing that happened. `mac` is canonical or empty (unknown); `client` the machine's name or empty."""

    at_s: float
    kind: str  # of KINDS
    mac: str
    client: str
    domain: str
    evidence: Mapping[str, str | int | float] = field(default_factory=dict)


Listener = Callable[[BootEvent], None]
