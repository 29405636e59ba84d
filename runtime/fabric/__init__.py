"""The FFN fabric: activations out to the ducks, summed partial vectors back."""

from .failover import FailoverEvent, FailoverPolicy
from .interface import Fabric, ForwardTiming, Ticket
from .local import LocalFabric
from .udp import UdpFabric

__all__ = ["Fabric", "FailoverEvent", "FailoverPolicy", "ForwardTiming", "LocalFabric", "Ticket", "UdpFabric"]
