"""The FFN fabric: activations out to the ducks, summed partial vectors back."""

from .interface import Fabric, ForwardTiming, Ticket
from .local import LocalFabric
from .udp import UdpFabric

__all__ = ["Fabric", "ForwardTiming", "LocalFabric", "Ticket", "UdpFabric"]
