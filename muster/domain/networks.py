"""Networks of callers, for limits of callers without a key."""

import ipaddress
from typing import Final

_IPV6_PREFIX: Final = 64
"""Prefix that one host of IPv6 commonly has to itself: all of it counts as one caller."""


def network_of(address: str | None) -> str:
    """Return what counts as one caller: an IPv4 address, or the network of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))
