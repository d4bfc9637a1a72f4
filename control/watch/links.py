"""Probes between the hosts of an attempt, as links of their ranks.

Agents probe a few hosts each, and one host of their own attempt (``control.hosts.pair_probes``). A result has
the number of small messages that were lost, and the time that the others took.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from control.attempts.mapping import job_request
from health.pairwise.pair_probes import ROUND_S
from muster.db.models import Attempt, AttemptHost, Job, Node, StoredSignal
from muster.domain.evidence.findings import EventKind
from muster.domain.ids import AttemptId, NodeId
from muster.domain.robust import is_figure
from watch.stragglers.network import Link

AGE: Final = timedelta(seconds=2 * ROUND_S)
"""Older results say nothing about the newest windows. A result is reported at the end of a round."""
_MOST: Final = 4_096


def links_of(session: Session, attempt_id: AttemptId, now: datetime) -> tuple[Link, ...]:
    """Return the newest probe of each pair of the attempt's hosts, if it is not too old; of one host, none.

    Which of the first ranks stands for a host does not matter: they share its network.
    """
    job = session.scalars(select(Job).join(Attempt, Attempt.job_id == Job.id).where(Attempt.id == attempt_id)).one()
    width = job_request(job).shape.num_ranks_per_node
    query = select(AttemptHost.node_id, AttemptHost.node_rank, Node.name).join(Node, Node.id == AttemptHost.node_id)
    rows = session.execute(query.where(AttemptHost.attempt_id == attempt_id))
    hosts = {node_id: (node_rank * width, name) for node_id, node_rank, name in rows}
    if len(hosts) < 2:
        return ()
    since = now - AGE
    probes = select(StoredSignal.node_id, StoredSignal.text, StoredSignal.values).where(
        StoredSignal.node_id.in_(hosts),
        StoredSignal.kind == EventKind.PAIR_PROBE,
        StoredSignal.received_at >= since,
        StoredSignal.at >= since,
        StoredSignal.text.in_(hosts),
    )
    newest: dict[tuple[NodeId, NodeId], Link] = {}
    for node_id, peer, values in session.execute(probes.order_by(StoredSignal.at.desc()).limit(_MOST)):
        link = _link(hosts[node_id], hosts[NodeId(peer)], values)
        if link is not None:
            newest.setdefault((node_id, NodeId(peer)), link)
    return tuple(newest.values())


def _link(one: tuple[int, str], other: tuple[int, str], values: Mapping[str, Any]) -> Link | None:
    """Return the link from ``one`` to ``other``; None if no message was sent, or the values are no figures."""
    sent, lost, p99_us = (_figure(values.get(name)) for name in ("sent", "lost", "round_trip_p99_us"))
    if sent is None or lost is None or sent <= 0 or not 0 <= lost <= sent:
        return None
    return Link((one[0], other[0]), (one[1], other[1]), sent, lost / sent, p99_us)


def _figure(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and is_figure(value) else None
