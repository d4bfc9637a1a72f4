"""Nodes that became LOST together: one cause, and so one incident for the failure domain that they share.

Levels of the fleet: pod, rack. Heartbeats ended at these times:

    10:00:01 … 10:00:12    all 32 hosts of rack p1/r1, all 32 of rack p1/r2      → pod p1: 64 nodes
    10:00:05               1 of 32 hosts of rack p2/r9                           → a node alone
    11:30:00               2 of 32 hosts of rack p1/r1 that had come back        → two nodes alone

A domain is down if half of its own hosts are lost together, two at least, or if two domains within it are down. The
widest domain that is down has the incident. Hosts that come back leave it, and it stays until the last one has left.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from muster.domain.ids import NodeId

Domain = tuple[str, ...]
"""Names of the domains from the widest level down to this one; ``()`` is the fleet. An unknown one is empty."""
FLEET: Final[Domain] = ()
_FEWEST: Final = 2


def domain_of(path: Sequence[str]) -> Domain:
    """Return the narrowest domain that is known of a node with this path."""
    known = [at for at, name in enumerate(path) if name]
    return tuple(path[: known[-1] + 1]) if known else FLEET


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node that is LOST. ``beat_at_ms``: its last heartbeat, its enrolment if there was none (``is_new``).

    ``is_due``: it has been LOST for as long as the policy waits.
    """

    id: NodeId
    name: str
    domain: Domain
    num_gpus: int
    beat_at_ms: int
    is_due: bool
    is_new: bool = False
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The time in which nodes of one incident sent their last heartbeats."""

    first_ms: int
    last_ms: int

    def is_near(self, at_ms: int, within_ms: int) -> bool:
        return self.first_ms - within_ms <= at_ms <= self.last_ms + within_ms

    def widened(self, nodes: Iterable[LostNode]) -> "Span":
        times = [self.first_ms, self.last_ms, *(node.beat_at_ms for node in nodes)]
        return Span(min(times), max(times))


@dataclass(frozen=True, slots=True)
class LostDomain:
    """Nodes of one domain that were lost together, by name. ``span``: also of nodes that have come back."""

    domain: Domain
    nodes: tuple[LostNode, ...]
    span: Span


def gather(
    lost: Sequence[LostNode],
    count_hosts: Callable[[], Mapping[Domain, int]],
    *,
    known: Mapping[Domain, Span],
    alone: Collection[NodeId],
    within_ms: int,
) -> tuple[list[LostDomain], list[LostNode]]:
    """Return the domains that need an incident, and the nodes that need one of their own.

    ``count_hosts`` returns the hosts by their narrowest known domain; it is called if nodes are new here.
    ``known``: domains with an open incident; ``alone``: nodes with one of their own. Both keep it.
    ``within_ms``: the longest pause between two losses of one cause.
    """
    singles = [node for node in lost if node.id in alone]
    found: dict[Domain, list[LostNode]] = defaultdict(list)
    spans = dict(known)
    rest: list[LostNode] = []
    for node in lost:
        if node.id in alone:
            continue
        home = next((each for each in _within(node.domain) if _is_near(spans.get(each), node, within_ms)), None)
        (rest if home is None else found[home]).append(node)
    due = [each for each in _clusters(rest, within_ms) if any(node.is_due for node in each)]
    num_hosts = count_hosts() if due else {}
    for cluster in due:
        down = _widest_down(cluster, num_hosts)
        for node in cluster:
            home = next((each for each in _within(node.domain) if each in down), None)
            if home is not None:
                found[home].append(node)
            elif node.is_due:
                singles.append(node)
    gathered = [_lost_domain(domain, nodes, spans.get(domain)) for domain, nodes in sorted(found.items())]
    return gathered, sorted(singles, key=lambda node: node.name)


def _within(domain: Domain) -> list[Domain]:
    """Return the domains that hold this one, the fleet first, and itself last."""
    return [domain[:length] for length in range(len(domain) + 1) if not length or domain[length - 1]]


def _is_near(span: Span | None, node: LostNode, within_ms: int) -> bool:
    return span is not None and span.is_near(node.beat_at_ms, within_ms)


def _clusters(nodes: Sequence[LostNode], within_ms: int) -> list[list[LostNode]]:
    ordered = sorted(nodes, key=lambda node: (node.beat_at_ms, node.name))
    clusters: list[list[LostNode]] = [ordered[:1]] if ordered else []
    for before, node in pairwise(ordered):
        if node.beat_at_ms - before.beat_at_ms > within_ms:
            clusters.append([])
        clusters[-1].append(node)
    return clusters


def _widest_down(cluster: Sequence[LostNode], num_hosts: Mapping[Domain, int]) -> set[Domain]:
    """Return the domains that are down. Of nested ones the widest decides."""
    own = Counter(node.domain for node in cluster)
    down = {each for each, count in own.items() if count >= _FEWEST and 2 * count >= num_hosts.get(each, count)}
    num_down_within: Counter[Domain] = Counter()
    every = {each for domain in own for each in _within(domain)}
    for domain in sorted(every, key=len, reverse=True):
        if num_down_within[domain] >= _FEWEST:
            down.add(domain)
        if domain in down and domain:
            num_down_within[_within(domain)[-2]] += 1
    return down


def _lost_domain(domain: Domain, nodes: list[LostNode], span: Span | None) -> LostDomain:
    start = span or Span(nodes[0].beat_at_ms, nodes[0].beat_at_ms)
    return LostDomain(domain, tuple(sorted(nodes, key=lambda node: node.name)), start.widened(nodes))
