"""Texts and facts of incidents about nodes that are LOST: a node alone, or all of a domain that were lost together."""

from collections.abc import Sequence
from datetime import datetime

from control.incidents.keeping import Need
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.evidence.lost_together import Domain, LostDomain, LostNode
from muster.domain.times import to_time


def need_of_node(node: LostNode) -> Need:
    beat_at = to_time(node.beat_at_ms)
    return Need(
        IncidentKind.NODE_LOST,
        "node",
        node.id,
        f"node {node.name} is LOST, with its {node.num_gpus} GPUs: its host has sent no heartbeat since "
        f"{'its enrolment' if node.is_new else f'{beat_at:%Y-%m-%d %H:%M:%S} UTC'}",
        {
            "node_id": node.id,
            "node_name": node.name,
            "rack": node.rack,
            "last_heartbeat_at": None if node.is_new else beat_at.isoformat(),
            "to_do": f"Check power, network and host worker of {node.name}. If it stays away, state it: "
            f"`muster cordon create --node {node.name} --reason …`.",
        },
    )


def need_of_domain(lost: LostDomain, levels: Sequence[str]) -> Need:
    """Return one need for all nodes. The incident follows their number and their list."""
    nodes, words = lost.nodes, _words(lost.domain, levels)
    num_gpus = sum(node.num_gpus for node in nodes)
    from_at, until_at = (to_time(at_ms) for at_ms in (lost.span.first_ms, lost.span.last_ms))
    count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    return Need(
        IncidentKind.NODE_LOST,
        "domain",
        _subject(lost.domain, levels),
        f"{count} of {words} {'is' if len(nodes) == 1 else 'are'} LOST, with {num_gpus} GPUs, and were lost together: "
        f"the last heartbeats came {_between(from_at, until_at)}",
        {
            "domain": list(lost.domain),
            "num_nodes": len(nodes),
            "num_gpus": num_gpus,
            "beat_from_ms": lost.span.first_ms,
            "beat_until_ms": lost.span.last_ms,
            "node_ids": [node.id for node in nodes],
            "node_names": [node.name for node in nodes],
            "to_do": f"Check what the nodes of {words} share: power, switches and the network to the control plane. "
            "`muster node list --contact lost` has the nodes. If one stays away, state it: "
            "`muster cordon create --node NAME --reason …`.",
        },
        is_current=True,
        lists=("node_ids", "node_names"),
    )


def _subject(domain: Domain, levels: Sequence[str]) -> str:
    return f"{levels[len(domain) - 1]}:{'/'.join(filter(None, domain))}" if domain else "fleet"


def _words(domain: Domain, levels: Sequence[str]) -> str:
    """Return the domain as text, such as ``rack r7 (pod p1)``."""
    if not domain:
        return "the fleet"
    named = [f"{level} {name}" for level, name in zip(levels, domain, strict=False) if name]
    wider = f" ({', '.join(named[:-1])})" if len(named) > 1 else ""
    return f"{named[-1]}{wider}"


def _between(from_at: datetime, until_at: datetime) -> str:
    first, last = (f"{at:%Y-%m-%d %H:%M:%S}" for at in (from_at, until_at))
    return f"at {first} UTC" if first == last else f"from {first} to {last} UTC"
