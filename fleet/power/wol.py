"""Wake-on-LAN by UDP broadcast, out of the interface of the duck's domain."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from duckfleet.fleet.errors import PowerError, PowerUnsupported
from duckfleet.fleet.power import magic
from duckfleet.fleet.power.interface import Evidence
from duckfleet.inventory.site import Domain, Duck


class WakeOnLan:
    """Magic packets to the domain's broadcast address.

    The socket is bound to the interface *and* to the host's address there, so that neither a default route nor a
    second card in the same network decides where the packet leaves.
    """

    def __init__(self, repeats: int = 3) -> None:
        self.repeats = repeats

    def on(self, duck: Duck, domain: Domain) -> Evidence:
        payload = magic.build(duck.mac, duck.secure_on)
        with _mapped(duck, domain), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            pinned = _bind_to_device(sender, domain.interface)
            sender.bind((domain.host_address, 0))
            for _ in range(self.repeats):
                sender.sendto(payload, (domain.broadcast, domain.wol_port))
        return {
            "driver": "wol",
            "mac": duck.mac,
            "interface": domain.interface,
            "to": f"{domain.broadcast}:{domain.wol_port}",
            "packets": self.repeats,
            "payload_bytes": len(payload),
            "bound_to_interface": pinned,
        }

    def off(self, duck: Duck, domain: Domain) -> Evidence:
        raise PowerUnsupported(only_starts(duck))

    def cycle(self, duck: Duck, domain: Domain) -> Evidence:
        raise PowerUnsupported(only_starts(duck))


def only_starts(duck: Duck) -> str:
    return (
        f"duck {duck.name}: wake-on-LAN can only start it, and it does not answer on its control port; hold its power "
        f"button, or give it a smart plug ([power.NAME] in the site file)"
    )


def _bind_to_device(sender: socket.socket, interface: str) -> bool:
    try:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    except PermissionError:
        return False  # an old kernel asks for CAP_NET_RAW; the bound source address still chooses the route
    return True


@contextmanager
def _mapped(duck: Duck, domain: Domain) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f"duck {duck.name}: no magic packet could leave through {domain.interface} (domain {domain.name})"
        if error.errno == errno.ENODEV:
            raise PowerError(f"{where}: this host has no such interface; see `ip link`") from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise PowerError(
                f"{where}: this host does not have the address {domain.host_address}; "
                f"`ip address add {domain.host_address}/{domain.prefix_len} dev {domain.interface}`"
            ) from error
        if error.errno in (errno.ENETUNREACH, errno.ENETDOWN):
            raise PowerError(f"{where}: {error.strerror}; `ip link set {domain.interface} up`") from error
        raise PowerError(f"{where}: {error.strerror or error}") from error
