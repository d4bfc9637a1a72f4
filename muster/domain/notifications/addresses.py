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
_NEVER_PUBLIC: Final[tuple[Network, ...]] = (
    ip_network("64:ff9b:1::/48"),
    ip_network("fec0::/10"),
    ip_network("::ffff:0:0:0/96"),
    ip_network("3fff::/20"),
    ip_network("5f00::/16"),
    ip_network("192.0.0.0/24"),
    ip_network("192.88.99.0/24"),
    ip_network("168.63.129.16/32"),
)
"""Addresses of translators and of clouds' own services, which Python's tables count as public."""


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    """Return whether a notification may go to an address: it is public, or in a network that is ``allowed``."""
    address = ip_address(text.partition("%")[0])
    meant = _meant_by(address)
    if _is_in(address, allowed) or _is_in(meant, allowed):
        return True
    is_public = meant.is_global and not meant.is_multicast
    return is_public and not _is_in(address, _NEVER_PUBLIC) and not _is_in(meant, _NEVER_PUBLIC)


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


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
