"""Wake-on-LAN as a raw Ethernet frame of type 0x0842: for cards that look at no UDP, and for unaddressed ports."""

from __future__ import annotations

from duckfleet.fleet.errors import PowerError, PowerUnsupported
from duckfleet.fleet.power import magic
from duckfleet.fleet.power.interface import Evidence
from duckfleet.fleet.power.wol import only_starts
from duckfleet.inventory.site import Domain, Duck


class RawWakeOnLan:
    """Magic packets as Ethernet broadcasts on the domain's interface. Needs CAP_NET_RAW."""

    def __init__(self, repeats: int = 3) -> None:
        self.repeats = repeats

    def on(self, duck: Duck, domain: Domain) -> Evidence:
        from scapy.layers.l2 import Ether  # scapy takes half a second to import
        from scapy.packet import Raw
        from scapy.sendrecv import sendp

        payload = magic.build(duck.mac, duck.secure_on)
        frame = Ether(dst="ff:ff:ff:ff:ff:ff", type=magic.ETHERTYPE) / Raw(payload)
        try:
            sendp(frame, iface=domain.interface, count=self.repeats, verbose=False)
        except PermissionError as error:
            raise PowerError(
                f"duck {duck.name}: raw frames need root (CAP_NET_RAW); run duckctl as root or use power = 'wol'"
            ) from error
        except (OSError, ValueError) as error:
            raise PowerError(
                f"duck {duck.name}: no frame could leave through {domain.interface} (domain {domain.name}): {error}"
            ) from error
        return {
            "driver": "wol-raw",
            "mac": duck.mac,
            "interface": domain.interface,
            "to": f"ethertype 0x{magic.ETHERTYPE:04x}",
            "packets": self.repeats,
            "payload_bytes": len(payload),
        }

    def off(self, duck: Duck, domain: Domain) -> Evidence:
        raise PowerUnsupported(only_starts(duck))

    def cycle(self, duck: Duck, domain: Domain) -> Evidence:
        raise PowerUnsupported(only_starts(duck))
