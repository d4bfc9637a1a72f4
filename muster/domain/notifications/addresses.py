"""To which addresses notifications go: public ones, and networks that the operator allows.

A tenant names its receivers. So an address of the operator's own network, of this machine, or of a cloud's metadata
service is refused, by whatever name or notation it is reached.
"""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

_TRANSLATED: Final = ip_network("64:ff9b::/96")
_TUNNELLED: Final = ip_network("2002::/16")
_COMPATIBLE: Final = ip_network("::/96")
Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def refusal_of(text: str, allowed: Sequence[Network]) -> str | None:
    """Return why nothing is sent to an address; None: it is public, or in a network that is ``allowed``."""
    address = ip_address(text.partition("%")[0])
    meant = _meant_by(address)
    if any(each.version == network.version and each in network for network in allowed for each in (address, meant)):
        return None
    if not meant.is_global or meant.is_multicast:
        return f"{meant} is no public address, and in no network that the policy allows (`notifications`)"
    return None


def _meant_by(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    value = int(address)
    if address in _TRANSLATED or (address in _COMPATIBLE and value > 1):
        return IPv4Address(value & 0xFFFF_FFFF)
    return IPv4Address((value >> 80) & 0xFFFF_FFFF) if address in _TUNNELLED else address
