"""The domains over which a gang is divided where none holds it: the fewest, and of these the smallest that suffice.

So the largest domains stay whole for gangs that need one domain. A gang of 7 on leaves with 5, 4 and 3 free hosts:

    divided as   leaves   a later gang of 5
    5 + 2        0 4 1    waits
    4 + 3        5 0 0    starts
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from scheduler.fleet.topology import Ints


def fewest_shares(rooms: Ints, sizes: Ints, nodes: int, rises: Callable[[Ints, int], Ints]) -> Ints:
    """Return the hosts that each domain gives: all of the smallest that suffice, and one domain the rest.

    ``rooms``: hosts in whole slices; of equal domains the one with fewer hosts (``sizes``) is taken, which leaves
    fewest over. ``rises``: what the rest adds to the fragments of some domains; of the domains with the least rise the
    tightest gives the rest.
    """
    largest_first = np.lexsort((sizes, -rooms))
    by_room: list[int] = rooms[largest_first].tolist()
    taken = _first_of_equals(by_room, _smallest_enough(by_room, nodes)[:-1])
    shares = np.zeros(len(rooms), dtype=np.int64)
    whole = largest_first[taken]
    shares[whole] = rooms[whole]
    rest = nodes - int(shares.sum())
    others = np.delete(largest_first, taken)
    able = others[rooms[others] >= rest]
    of_each = rooms[able]
    if len(able) > 1 and of_each[-1] > rest:  # else nothing is left over in the last one, which no other can better
        of_each = rises(able, rest) * (by_room[0] + 1) + of_each
    shares[able[of_each.argmin()]] = rest
    return shares


def _smallest_enough(largest_first: list[int], nodes: int) -> list[int]:
    """Return the positions of the fewest domains that hold so many hosts: the largest of them is as small as possible.

    So is the second largest, and so on. A domain may be the next one if it and the largest after it hold the hosts that
    are left.
    """
    reached = [0, *np.cumsum(largest_first).tolist()]
    number = next(index for index, held in enumerate(reached) if held >= nodes)
    chosen: list[int] = []
    at, left = 0, nodes
    for missing in range(number, 0, -1):
        last = len(largest_first) - missing
        while at < last and reached[at + 1 + missing] - reached[at + 1] >= left:
            at += 1
        chosen.append(at)
        left -= largest_first[at]
        at += 1
    return chosen


def _first_of_equals(largest_first: list[int], positions: list[int]) -> list[int]:
    """Return the positions with the same rooms, the first ones of equal rooms: they are the fuller domains."""
    found: list[int] = []
    for room, number in Counter(largest_first[position] for position in positions).items():
        first = largest_first.index(room)
        found += range(first, first + number)
    return found
