"""Incidents that follow from a state: each is open exactly as long as the state lasts, at most one for a subject.

A state is named by a ``Need``. The keeper compares the needs of a kind with the open incidents of that kind, first
without a lock. Only where they differ it compares again in its own turn, and opens and closes what is missing and what
is over.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.incidents import incidents
from muster.db.models import Incident
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.principals import Permission, Principal

KEEP: Final = declare_action("incident.keep")
_LOCK: Final = 0x5AFE_A77E
"""Key of the lock by which keepers take turns: two at once would open two incidents about one state."""


@dataclass(frozen=True, slots=True)
class Need:
    """One state that needs a person. ``summary``: what happened and why. ``facts``: with ``to_do`` as text.

    ``is_current``: an open incident follows changes of summary and facts, with an event that leaves out ``lists``.
    """

    kind: IncidentKind
    subject_type: str
    subject_id: str
    summary: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_current: bool = False
    lists: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.subject_id

    @property
    def payload(self) -> dict[str, Any]:
        return {"why": self.summary, **self.facts}


Finder = Callable[[Session, datetime], Sequence[Need]]
"""Returns the needs of its kinds at an instant. Run in the keeper's transaction, it reads committed states."""


def keep_once(
    units: UnitOfWorkFactory, principal: Principal, kinds: Collection[IncidentKind], find: Finder, over: str
) -> int:
    """Open and close incidents of ``kinds`` so that they are what ``find`` finds. Return how many changed.

    ``over``: the reason of a closing.
    """
    with units.read() as session:
        needs = find(session, units.clock())
        if _keys_of(needs) == _open_keys(session, kinds) and not _changed(session, needs):
            return 0
    return retrying(lambda: _keep(units, principal, kinds, find, over))


def _keep(
    units: UnitOfWorkFactory, principal: Principal, kinds: Collection[IncidentKind], find: Finder, over: str
) -> int:
    with units.begin(principal, KEEP, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        unit.session.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        needs = {need.key: need for need in find(unit.session, unit.now)}
        known = _open(unit, kinds)
        for key in sorted(needs.keys() - known.keys()):
            need = needs[key]
            incidents.open_incident(
                unit, need.kind, need.subject_type, need.subject_id, need.summary, need.payload, lists=need.lists
            )
        changed = [key for key in sorted(needs.keys() & known.keys()) if _differs(needs[key], known[key].payload)]
        for key in changed:
            need = needs[key]
            incidents.extend_incident(unit, known[key], need.summary, need.payload, lists=need.lists)
        ended = sorted(known.keys() - needs.keys())
        for key in ended:
            incidents.close_incident(unit, known[key], reason=over)
        return len(needs.keys() - known.keys()) + len(changed) + len(ended)


def _keys_of(needs: Sequence[Need]) -> set[tuple[str, str]]:
    return {need.key for need in needs}


def _changed(session: Session, needs: Sequence[Need]) -> bool:
    """Return whether the incident of any need that is kept current says something else."""
    current = {need.key: need for need in needs if need.is_current}
    if not current:
        return False
    query = select(Incident.kind, Incident.subject_id, Incident.payload).where(
        Incident.closed_at.is_(None), Incident.subject_id.in_([subject_id for _, subject_id in current])
    )
    return any(
        _differs(current[kind, subject_id], payload)
        for kind, subject_id, payload in session.execute(query)
        if (kind, subject_id) in current
    )


def _differs(need: Need, payload: Mapping[str, Any]) -> bool:
    return need.is_current and need.payload != payload


def _open_keys(session: Session, kinds: Collection[IncidentKind]) -> set[tuple[str, str]]:
    query = select(Incident.kind, Incident.subject_id).where(Incident.closed_at.is_(None), Incident.kind.in_(kinds))
    return {(kind, subject_id) for kind, subject_id in session.execute(query)}


def _open(unit: UnitOfWork, kinds: Collection[IncidentKind]) -> dict[tuple[str, str], Incident]:
    query = select(Incident).where(Incident.closed_at.is_(None), Incident.kind.in_(kinds)).order_by(Incident.id)
    return {(found.kind, found.subject_id): found for found in unit.session.scalars(query.with_for_update())}
