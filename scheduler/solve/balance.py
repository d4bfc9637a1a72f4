"""An even spread of a gang: over the fewest domains that hold it, with the largest possible least share.

The threshold and the tight choice above it follow Kueue's balanced placement; hosts go in units of whole slices.
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from scheduler.fleet.layout import Nesting
from scheduler.fleet.tally import Ints


def least_share(rooms: Ints, num_nodes: int, unit: int = 1) -> int:
    """Return the largest least share, in hosts, of an even spread over the fewest domains; 0 if they do not hold it.

    ``rooms``: hosts a domain, multiples of ``unit``, as ``num_nodes`` is.
    """
    return _least_and_number(sorted(rooms.tolist(), reverse=True), num_nodes, unit)[0]


def _least_and_number(largest_first: Sequence[int], num_nodes: int, unit: int) -> tuple[int, int]:
    """Return the least share, and the fewest domains that hold so many; 0 and 0 if all of them do not."""
    left = num_nodes
    for number, room in enumerate(largest_first, start=1):
        left -= room
        if left <= 0:
            return min(num_nodes // unit // number * unit, room), number
    return 0, 0


def least_shares(rooms: Ints, nesting: Nesting, homes: Ints, num_nodes: int, unit: int = 1) -> Ints:
    """Return ``least_share`` of each of ``homes`` at once, all of which hold so many. ``rooms``: by inner group."""
    # By home, within it the largest first. One number is the key of both, which is faster to sort than two keys.
    ordered = nesting.keys - rooms[nesting.inner].astype(nesting.keys.dtype)
    ordered.sort()
    room = nesting.keys - ordered
    reached = room.cumsum(dtype=room.dtype)
    first = nesting.first[homes]
    last = reached.searchsorted(reached[first] - room[first] + num_nodes)
    least: Ints = np.minimum(num_nodes // unit // (last - first + 1) * unit, room[last])
    return least


def even_shares(rooms: Ints, num_nodes: int, unit: int = 1) -> Ints:
    """Return the hosts that each domain gives: the smallest sufficient domains with at least the least share.

    There are always enough such domains. Domains are a few dozen, so plain numbers are faster than arrays.
    """
    order = rooms.argsort(kind="stable")
    by_room = rooms[order].tolist()
    least, num_domains = _least_and_number(by_room[::-1], num_nodes, unit)
    start = bisect_left(by_room, max(least, unit))
    held = sum(by_room[start : start + num_domains])
    while held < num_nodes:
        held += by_room[start + num_domains] - by_room[start]
        start += 1
    chosen = slice(start, start + num_domains)
    shares, rest = [0] * len(by_room), num_nodes
    last_of_equals_first = sorted(
        [(room, -domain) for room, domain in zip(by_room[chosen], order[chosen].tolist(), strict=True)]
    )
    for number, (room, domain) in enumerate(last_of_equals_first):
        share = min(rest // unit // (num_domains - number) * unit, room)
        shares[-domain] = share
        rest -= share
    return np.array(shares, dtype=np.int64)
