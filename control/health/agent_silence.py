"""Agents that send nothing, on hosts that are in contact: time alone shows them, since no report comes to be judged.

One statement finds them by the index on ``node_latest.overdue_at``, whatever the number of agents that report. The
finding is about the node, which takes nothing new; no GPU is at fault. The agent's next report ends it. A host that is
silent as a whole is judged by its contact, and no agent is blamed for an outage of the API
(``control.core.lease_grace``).
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Select, and_, exists, or_, select

from control.core.lease_grace import lease_grace_since_ms
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.evidence.inbox import sample_row
from control.policy.policies import active_policy
from health.detectors.gpu.freshness import agent_silence
from muster.db.models import Node, NodeLatest
from muster.db.queries.telemetry import add_signals
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Principal
from muster.domain.states import Contact
from muster.domain.times import to_ms, to_time

SILENCE: Final = declare_action("judge.agent_silence")
AT_ONCE: Final = 200


def state_silent_agents_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """State the silence of agents that are overdue. Return how many were stated."""
    with units.read() as session:
        policy = active_policy(session).health
        is_due = NodeLatest.overdue_at <= _due_until(units.clock(), policy)
        if policy.detectors.freshness.mode == "off" or not session.scalar(select(exists().where(is_due))):
            return 0
    num_stated = 0
    while True:
        num_taken, num_new = retrying(lambda: _some(units, principal, policy))
        num_stated += num_new
        if num_taken < AT_ONCE:
            return num_stated


def _some(units: UnitOfWorkFactory, principal: Principal, policy: HealthPolicy) -> tuple[int, int]:
    """Take some agents that are overdue, or whose host is out of contact. Return how many, and how many are stated.

    The time of a host out of contact moves on: when the host is back, its agent has half of it to send a report. So it
    does after an outage of the API.
    """
    allowed = timedelta(seconds=policy.detectors.freshness.agent_max_s)
    with units.begin(principal, SILENCE, quiet=True) as unit:
        is_accepted_since = to_time(lease_grace_since_ms(unit))
        rows: list[dict[str, Any]] = []
        found = unit.session.execute(_overdue(unit.now, allowed, policy)).all()
        for latest, contact in found:
            if contact is not Contact.LIVE or is_accepted_since > unit.now - allowed:
                latest.overdue_at = unit.now + allowed
                continue
            rows += _stated(unit, latest, policy)
            latest.silence_stated_at = unit.now
            latest.overdue_at = unit.now + timedelta(seconds=policy.evidence.restate_s)
        unit.session.flush()
        if rows:
            add_signals(unit.session.connection(), rows)
        return len(found), len(rows)


def _due_until(now: datetime, policy: HealthPolicy) -> datetime:
    return now + timedelta(seconds=policy.detectors.freshness.agent_max_s) / 2


def _overdue(now: datetime, allowed: timedelta, policy: HealthPolicy) -> Select[NodeLatest, Contact]:
    is_silent = and_(NodeLatest.overdue_at <= now, NodeLatest.received_at <= now - allowed)
    return (
        select(NodeLatest, Node.contact)
        .join(Node, Node.id == NodeLatest.node_id)
        .where(
            NodeLatest.overdue_at <= _due_until(now, policy),
            or_(Node.contact != Contact.LIVE, is_silent),
        )
        .order_by(NodeLatest.node_id)
        .limit(AT_ONCE)
        .with_for_update(of=NodeLatest, key_share=True, skip_locked=True)
    )


def _stated(unit: UnitOfWork, latest: NodeLatest, policy: HealthPolicy) -> Iterator[dict[str, Any]]:
    if latest.received_at is None:
        return
    now_ms = to_ms(unit.now)
    name = f"silence/{latest.boot_id}/{latest.seq:020d}/{now_ms}"
    for found in agent_silence(latest.node_id, now_ms - to_ms(latest.received_at), policy, now_ms):
        yield sample_row(found, latest.node_id, name, unit.now)
