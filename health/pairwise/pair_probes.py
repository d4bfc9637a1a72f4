"""The peers that each host probes: a few each, and with time every rack from every rack. Our own numbers.

Time is divided into rounds. Within one, hosts at different places of their rack probe different racks, so that a rack
of eight reaches nine at once; the next round continues from there. A repeated query in a round has the same answer.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from muster.domain.ids import NodeId

ROUND_S: Final = 900
"""Seconds. With two peers and 20 messages a minute each: 40 datagrams a minute and host, and two events a round."""
PEERS: Final = 2
BURST: Final = 20
"""Messages at once to each peer."""
BURST_EVERY_S: Final = 60.0

Racks = Mapping[str, Sequence[NodeId]]
"""Rack → its hosts that answer probes, in the order of their ids."""


def round_at(at_s: float) -> int:
    """Return the number of the round. ``at_s``: s since 1970."""
    return int(at_s) // ROUND_S


def peers_of(node_id: NodeId, racks: Racks, round_number: int, num_peers: int = PEERS) -> tuple[NodeId, ...]:
    """Return the peers that this host probes in this round: at most so many, none twice, never itself.

    Empty where the host is not in ``racks``. A pair recurs after ``number of racks × the target rack's hosts`` turns,
    of which a round has ``num_peers``.
    """
    names = sorted(rack for rack, hosts in racks.items() if hosts)
    home = next((at for at, name in enumerate(names) if node_id in racks[name]), None)
    if home is None:
        return ()
    place = racks[names[home]].index(node_id)
    found: list[NodeId] = []
    for nth in range(num_peers):
        peer = _peer_at(racks, names, home, place, round_number * num_peers + nth)
        if peer is not None and peer not in found:
            found.append(peer)
    return tuple(found)


def gang_peer(node_rank: int, num_hosts: int, round_number: int) -> int | None:
    """Return the place of the host of the same gang that this one probes in this round; None where it is alone.

    In ``num_hosts - 1`` rounds each host probes each other one. No two probe the same one in a round.
    """
    if num_hosts < 2:
        return None
    return (node_rank + 1 + round_number % (num_hosts - 1)) % num_hosts


def _peer_at(racks: Racks, names: Sequence[str], home: int, place: int, turn: int) -> NodeId | None:
    """Return the peer of one turn; the next rack's where this host is alone in its own."""
    lap, step = divmod(turn, len(names))
    away = (step + place) % len(names)
    if away == 0 and len(racks[names[home]]) == 1:
        away = 1 % len(names)
    hosts = racks[names[(home + away) % len(names)]]
    if away:
        return hosts[(place + lap) % len(hosts)]
    if len(hosts) == 1:
        return None
    return hosts[(place + 1 + lap % (len(hosts) - 1)) % len(hosts)]


def nearest_rank(ascending: Sequence[float], share: float) -> float:
    """Return the least value that at least ``share`` of the values do not exceed: the nearest-rank percentile.

    There has to be at least one value.
    """
    rank = -(-len(ascending) * round(share * 1000) // 1000)
    return ascending[min(max(rank, 1), len(ascending)) - 1]
