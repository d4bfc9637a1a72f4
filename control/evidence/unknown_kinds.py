"""Events of a kind that this release does not know: an agent may be newer than its server.

They are stored as any other and marked as judged with a fault, so that no round reads them, and they have no weight;
one incident a kind reports them. The release that knows the kind judges them, and the incident is closed. A condemning
event keeps its GPU out of placement from that moment until it is judged, as if it had just arrived.
"""

from collections.abc import Sequence
from typing import Final

import structlog
from sqlalchemy import ColumnElement, func, select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.evidence.rows import signal_of
from control.incidents import incidents
from control.policy.policies import active_policy
from health.detectors.registry import alarms, judge_signal
from muster.db.models import Incident, StoredSignal
from muster.domain.evidence.findings import EventKind
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.policy.health import HealthPolicy
from muster.domain.principals import Principal

SORT: Final = declare_action("judge.unknown_kinds")
FAULT: Final = "this release does not know events of this kind"
SUBJECT: Final = "event_kind"
KINDS_REPORTED: Final = 20
"""Maximum number of open incidents: an agent may name any number of kinds."""
TAKEN_UP_AT_ONCE: Final = 2_000
"""Events a round: the judge takes the oldest first, and new events must not wait until all of them are judged."""
_LOCK: Final = 0x6B696E6473
_KNOWN: Final = frozenset(kind.value for kind in EventKind)
_log = structlog.get_logger(__name__)


def is_known(kind: str) -> bool:
    """Return whether agents may report this kind. ``inbox.FINDING`` is our own, from samples: no agent reports it."""
    return kind in _KNOWN


def sort_unknown_kinds_once(units: UnitOfWorkFactory, principal: Principal) -> int:
    """Hand events of kinds that are known now to the judge, and report the others. Return how many are to be judged."""

    def once() -> int:
        with units.begin(principal, SORT, quiet=True) as unit:
            unit.session.execute(select(func.pg_advisory_xact_lock(_LOCK)))  # two would open an incident each
            num_taken_up = _take_up(unit)
            _report(unit, dict(_counted(unit)))
            return num_taken_up

    return retrying(once)


def _is_set_aside() -> ColumnElement[bool]:
    return StoredSignal.judged_at.is_not(None) & StoredSignal.judge_fault.is_not(None)


def _take_up(unit: UnitOfWork) -> int:
    oldest = (
        select(StoredSignal)
        .where(_is_set_aside(), StoredSignal.kind.in_(_KNOWN))
        .order_by(StoredSignal.received_at, StoredSignal.node_id, StoredSignal.signal_id)
        .limit(TAKEN_UP_AT_ONCE)
        .with_for_update()
    )
    taken = unit.session.scalars(oldest).all()
    policy = active_policy(unit.session).health
    for row in taken:
        row.judged_at, row.judge_fault, row.is_alarming = None, None, _is_alarming(row, policy)
    return len(taken)


def _is_alarming(row: StoredSignal, policy: HealthPolicy) -> bool:
    try:
        return alarms(judge_signal(signal_of(row), policy))
    except Exception:  # noqa: BLE001  # one that cannot be judged is the judge's to set aside, alone
        _log.exception("event_not_judged", node_id=row.node_id, signal_id=row.signal_id)
        return False


def _counted(unit: UnitOfWork) -> Sequence[tuple[str, int]]:
    query = select(StoredSignal.kind, func.count()).where(_is_set_aside()).group_by(StoredSignal.kind)
    return [(kind, count) for kind, count in unit.session.execute(query.order_by(StoredSignal.kind))]


def _report(unit: UnitOfWork, counts: dict[str, int]) -> None:
    open_ones = unit.session.scalars(
        select(Incident)
        .where(Incident.closed_at.is_(None), Incident.kind == IncidentKind.JUDGE_FAILED)
        .where(Incident.subject_type == SUBJECT)
        .order_by(Incident.id)
        .with_for_update()
    ).all()
    for incident in open_ones:
        if incident.subject_id not in counts:
            incidents.close_incident(unit, incident, reason="none of its events waits any more")
    told = {incident.subject_id for incident in open_ones}
    for kind in [kind for kind in sorted(counts) if kind not in told][: max(0, KINDS_REPORTED - len(told))]:
        summary = f"agents report {kind!r}, which this release does not know: these events are kept and not judged"
        payload = {
            "event_kind": kind,
            "num_events": counts[kind],
            "to_do": "Upgrade the server: the release that knows the kind judges what was kept.",
        }
        incidents.open_incident(unit, IncidentKind.JUDGE_FAILED, SUBJECT, kind, summary, payload)
