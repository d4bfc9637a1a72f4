"""A gang spread evenly: over the fewest domains that hold it, so that the least share is as large as can be.

The threshold and the tight choice above it follow Kueue's balanced placement; hosts go in units of whole slices.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from scheduler.topology import Ints

_ROOM_BITS: Final = 32
_ROOM_MASK: Final = (1 << _ROOM_BITS) - 1


def least_share(rooms: Ints, num_nodes: int, unit: int = 1) -> int:
    """The largest least share, in hosts, that an even spread over the fewest domains has; 0 where they do not hold it.

    ``rooms``: hosts a domain, multiples of ``unit``, as ``num_nodes`` is.
    """
    return _least_and_number(sorted(rooms.tolist(), reverse=True), num_nodes, unit)[0]


def _least_and_number(largest_first: Sequence[int], num_nodes: int, unit: int) -> tuple[int, int]:
    """The least share, and the fewest domains that hold so many; 0 and 0 where all of them do not."""
    left = num_nodes
    for number, room in enumerate(largest_first, start=1):
        left -= room
        if left <= 0:
            return min(num_nodes // unit // number * unit, room), number
    return 0, 0


def least_shares(rooms: Ints, homes: Ints, num_homes: int, num_nodes: int, unit: int = 1) -> Ints:
    """``least_share`` of each of the homes at once. ``homes``: which one each of ``rooms`` is in, or less than 0."""
    shares = np.zeros(num_homes, dtype=np.int64)
    of_use = ((rooms > 0) & (homes >= 0)).nonzero()[0]
    # By home, within it the largest first: of one number for both, which is sorted sooner than two keys.
    ordered = (homes[of_use] << _ROOM_BITS) - rooms[of_use]
    ordered.sort()
    home = (ordered + _ROOM_MASK) >> _ROOM_BITS
    room = (home << _ROOM_BITS) - ordered
    in_home = np.bincount(home, minlength=num_homes)
    first = in_home.cumsum() - in_home
    reached = room.cumsum()
    before = reached - room
    missing = num_nodes - (reached - before[np.minimum(first, len(before) - 1)][home]) if len(home) else reached
    last = ((missing <= 0) & (missing + room > 0)).nonzero()[0]
    even = num_nodes // unit // (last - first[home[last]] + 1) * unit
    shares[home[last]] = np.minimum(even, room[last])
    return shares


def even_shares(rooms: Ints, num_nodes: int, unit: int = 1) -> Ints:
    """The hosts that each domain gives: of the domains that can give the least share the smallest that suffice.

    They do suffice. Domains are some dozens, so that plain numbers are sooner through than arrays.
    """
    of_domain = rooms.tolist()
    least, num_domains = _least_and_number(sorted(of_domain, reverse=True), num_nodes, unit)
    able = sorted((room, domain) for domain, room in enumerate(of_domain) if room >= max(least, unit))
    start, held = 0, sum(room for room, _ in able[:num_domains])
    while held < num_nodes:
        held += able[start + num_domains][0] - able[start][0]
        start += 1
    shares = np.zeros(len(rooms), dtype=np.int64)
    rest = num_nodes
    chosen = sorted(able[start : start + num_domains], key=lambda one: (one[0], -one[1]))
    for number, (room, domain) in enumerate(chosen):
        share = min(rest // unit // (num_domains - number) * unit, room)
        shares[domain] = share
        rest -= share
    return shares
