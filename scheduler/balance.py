"""A gang spread evenly: over the fewest domains that hold it, so that the least share is as large as can be.

The threshold and the tight choice above it follow Kueue's balanced placement; hosts go in units of whole slices.
"""

import numpy as np

from scheduler.topology import Ints


def least_share(rooms: Ints, num_nodes: int, unit: int = 1) -> int:
    """The largest least share, in hosts, that an even spread over the fewest domains has; 0 where they do not hold it.

    ``rooms``: hosts a domain, multiples of ``unit``, as ``num_nodes`` is.
    """
    largest_first = np.sort(rooms)[::-1]
    reached = np.cumsum(largest_first)
    if not len(reached) or reached[-1] < num_nodes:
        return 0
    num_domains = int(np.searchsorted(reached, num_nodes)) + 1
    even = num_nodes // unit // num_domains * unit
    return min(even, int(largest_first[num_domains - 1]))


def least_shares(rooms: Ints, homes: Ints, num_homes: int, num_nodes: int, unit: int = 1) -> Ints:
    """``least_share`` of each of the homes at once. ``homes``: which one each of ``rooms`` is in, or less than 0."""
    shares = np.zeros(num_homes, dtype=np.int64)
    of_use = np.flatnonzero((rooms > 0) & (homes >= 0))
    order = of_use[np.lexsort((-rooms[of_use], homes[of_use]))]
    home, room = homes[order], rooms[order]
    first = np.searchsorted(home, home)
    reached = np.cumsum(room)
    reached -= (reached - room)[first]
    last = np.flatnonzero((reached >= num_nodes) & (reached - room < num_nodes))
    even = num_nodes // unit // (last - first[last] + 1) * unit
    shares[home[last]] = np.minimum(even, room[last])
    return shares


def even_shares(rooms: Ints, num_nodes: int, unit: int = 1) -> Ints:
    """The hosts that each domain gives: of the domains that can give the least share the smallest that suffice."""
    least = least_share(rooms, num_nodes, unit)
    able = np.flatnonzero(rooms >= max(least, unit))
    able = able[np.argsort(rooms[able], kind="stable")]
    reached = np.cumsum(np.sort(rooms)[::-1])
    num_domains = int(np.searchsorted(reached, num_nodes)) + 1
    windows = np.lib.stride_tricks.sliding_window_view(able, num_domains)
    chosen = windows[int(np.argmax(rooms[windows].sum(axis=1) >= num_nodes))]
    shares = np.zeros(len(rooms), dtype=np.int64)
    rest = num_nodes
    for number, domain in enumerate(sorted(chosen.tolist(), key=lambda domain: (rooms[domain], -domain))):
        even = rest // unit // (num_domains - number) * unit
        shares[domain] = min(even, int(rooms[domain]))
        rest -= int(shares[domain])
    return shares
