"""Nodes that became LOST together have one incident for the domain that they share."""

from collections import Counter
from collections.abc import Mapping

import pytest

from muster.domain.evidence.lost_together import Domain, LostNode, Span, domain_of, gather
from muster.domain.ids import NodeId

S = 1000
NEAR_MS = 120 * S
SMALL: Mapping[Domain, int] = {(f"p{1 + n // 4}", f"r{n}"): 32 for n in range(8)}


def nodes(domain: Domain, count: int, *, at_s: int = 0, is_due: bool = True, first: int = 0) -> list[LostNode]:
    """So many of a domain's nodes, whose heartbeats ended within ten seconds."""
    return [
        LostNode(NodeId(f"{domain}-{n}"), f"{'-'.join(domain)}-{n:03}", domain, 8, (at_s + n % 10) * S, is_due)
        for n in range(first, first + count)
    ]


def gathered(
    *lost: list[LostNode],
    num_hosts: Mapping[Domain, int] = SMALL,
    known: Mapping[Domain, Span] | None = None,
    alone: frozenset[NodeId] = frozenset(),
) -> tuple[dict[Domain, int], int]:
    """Return the number of nodes of each domain's incident, and the number of nodes alone."""
    every = [node for some in lost for node in some]
    domains, singles = gather(every, lambda: num_hosts, known=known or {}, alone=alone, within_ms=NEAR_MS)
    named = Counter(node.id for each in domains for node in each.nodes) + Counter(node.id for node in singles)
    assert set(named.values()) <= {1}, "no node has two incidents"
    assert named.keys() >= {node.id for node in every if node.is_due}, "every node that is due has one"
    return {each.domain: len(each.nodes) for each in domains}, len(singles)


@pytest.mark.parametrize(
    ("lost", "domains", "alone"),
    [
        ([nodes(("p1", "r1"), 32)], {("p1", "r1"): 32}, 0),
        ([nodes(("p1", "r1"), 16)], {("p1", "r1"): 16}, 0),
        ([nodes(("p1", "r1"), 15)], {}, 15),
        ([nodes(("p1", "r1"), 1)], {}, 1),
        ([nodes(("p1", "r1"), 32), nodes(("p1", "r2"), 32)], {("p1",): 64}, 0),
        ([nodes(("p1", "r1"), 32), nodes(("p1", "r2"), 32), nodes(("p2", "r5"), 1)], {("p1",): 64}, 1),
        ([nodes(("p1", "r1"), 32), nodes(("p2", "r5"), 32)], {("p1", "r1"): 32, ("p2", "r5"): 32}, 0),
        ([nodes(each, 32) for each in SMALL], {(): 256}, 0),
        ([nodes(("p1", "r1"), 32), nodes(("p1", "r2"), 32, at_s=600)], {("p1", "r1"): 32, ("p1", "r2"): 32}, 0),
        ([nodes(("p1", "r1"), 1), nodes(("p1", "r1"), 31, is_due=False, first=1)], {("p1", "r1"): 32}, 0),
        ([nodes(("p1", "r1"), 32, is_due=False)], {}, 0),
    ],
    ids=[
        "a rack", "half of a rack", "less than half", "one node", "two racks of a pod", "a pod and a node",
        "a rack of each pod", "all pods", "two racks at two times", "the first that is due", "none is due",
    ],
)  # fmt: skip
def test_the_widest_domain_that_is_down_has_the_incident(
    lost: list[list[LostNode]], domains: dict[Domain, int], alone: int
) -> None:
    assert gathered(*lost) == (domains, alone)


def test_one_rack_of_each_of_two_pods_is_no_pod_and_two_pods_are_the_fleet() -> None:
    two = [nodes(("p1", f"r{n}"), 32) for n in (0, 1)] + [nodes(("p2", f"r{n}"), 32) for n in (4, 5)]
    assert gathered(*two) == ({(): 128}, 0)


def test_a_fleet_without_known_places_is_one_domain() -> None:
    assert domain_of(("", "")) == ()
    assert domain_of(("", "r1")) == ("", "r1")
    assert domain_of(("p1", "")) == ("p1",)
    assert gathered(nodes((), 5), num_hosts={(): 10}) == ({(): 5}, 0)
    assert gathered(nodes((), 2), num_hosts={(): 10}) == ({}, 2)
    assert gathered(nodes(("", "r1"), 4), nodes(("", "r2"), 4), num_hosts={("", "r1"): 4, ("", "r2"): 4}) == (
        {(): 8},
        0,
    )


def test_an_incident_keeps_its_nodes_until_the_last_has_come_back() -> None:
    known: Mapping[Domain, Span] = {("p1",): Span(0, 9 * S)}
    assert gathered(nodes(("p1", "r1"), 1), known=known) == ({("p1",): 1}, 0)
    assert gathered(nodes(("p1", "r3"), 3, at_s=100), known=known) == ({("p1",): 3}, 0), "a late one of the same loss"
    assert gathered(nodes(("p1", "r1"), 2, at_s=9000), known=known) == ({}, 2), "it had come back"
    assert gathered(nodes(("p1", "r1"), 32, at_s=9000), known=known) == ({("p1", "r1"): 32}, 0)
    both = [nodes(("p1", f"r{n}"), 32, at_s=9000) for n in (1, 2)]
    assert gathered(nodes(("p1", "r1"), 1, first=32), *both, known=known) == ({("p1",): 65}, 0), "one for a domain"
    alone = frozenset(node.id for node in nodes(("p1", "r1"), 1))
    assert gathered(nodes(("p1", "r1"), 32), alone=alone) == ({("p1", "r1"): 31}, 1)


def test_a_span_holds_all_that_were_of_it() -> None:
    known: Mapping[Domain, Span] = {("p1", "r1"): Span(-S, 5 * S)}
    (found,), _ = gather(nodes(("p1", "r1"), 3), dict, known=known, alone=(), within_ms=NEAR_MS)
    assert found.span == Span(-S, 5 * S)
