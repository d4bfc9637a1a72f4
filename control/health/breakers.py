"""The circuit breaker as persons see it: which scopes are open, how full each is, and closing one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, declare_action
from control.fleet.gpu_locks import lock_gpus
from control.health.breaker_cordons import cordoned_gpus
from control.health.capacity import fleet_counts
from control.health.proposals import proposed_gpus, waiting_gpus
from control.incidents import incidents
from control.policy.policies import active_policy
from health.standing import breaker
from health.standing.breaker import FLEET, FLEET_WINDOW, BreakerState
from muster.db.models import Breaker
from muster.domain.errors import ConflictError, NotFoundError
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.principals import Permission
from muster.domain.times import to_ms, to_time

CLOSE: Final = declare_action("breaker.close")
READ: Final = declare_action("breaker.read")


@dataclass(frozen=True, slots=True)
class Scope:
    """One scope: rules took out ``num_counted`` of at most ``cap`` GPUs. ``opened_at`` is None while it is closed.

    ``num_proposed``: GPUs there that rules would take out, and that the breaker holds back.
    """

    name: str
    cap: int
    num_counted: int
    num_proposed: int
    opened_at: datetime | None
    closed_at: datetime | None


@dataclass(frozen=True, slots=True)
class BreakerView:
    """The scopes in which rules ever took out a GPU; open ones first, then the fullest."""

    name: str
    scopes: Sequence[Scope]


def list_breakers(unit: UnitOfWork) -> Sequence[BreakerView]:
    unit.principal.require(Permission.GPU_READ)
    rows = unit.session.scalars(select(Breaker).order_by(Breaker.name)).all()
    return [_view(unit, row) for row in rows]


def close_scope(unit: UnitOfWork, name: str, scope: str, *, reason: str) -> BreakerView:
    """Let rules act in ``scope`` again, up to a whole cap beyond what is out now, and judge the waiting GPUs at once.

    Raises:
        NotFoundError: there is no such breaker.
        ConflictError: the scope is not open.
    """
    unit.principal.require(Permission.GPU_WRITE)
    held_back = sorted({*waiting_gpus(unit), *cordoned_gpus(unit)})
    waiting = lock_gpus(unit, held_back)  # before the breaker, as the judge does
    row = unit.session.get(Breaker, name, with_for_update=True)
    if row is None:
        raise NotFoundError("there is no such breaker")
    state = msgspec.convert(row.state, BreakerState)
    if scope not in state.open_since_ms:
        words = ", ".join(sorted(state.open_since_ms)) or "none"
        raise ConflictError(f"scope {scope!r} is not open; open: {words}", open_scopes=sorted(state.open_since_ms))
    closed = breaker.close(state, scope, to_ms(unit.now))
    stored: dict[str, Any] = msgspec.to_builtins(closed)
    row.state = stored
    for gpu in waiting:
        gpu.judge_at = unit.now
    unit.emit("breaker.closed", "breaker", name, payload={"scope": scope, "reason": reason})
    unit.audit("breaker.close", "breaker", name, reason=reason, detail={"scope": scope})
    _close_incidents(unit, name, closed, reason)
    unit.session.flush()
    return _view(unit, row)


def _close_incidents(unit: UnitOfWork, name: str, state: BreakerState, reason: str) -> None:
    """Close the incidents of which no scope is open any more."""
    for incident in incidents.open_about(unit, IncidentKind.BREAKER_OPEN, [name]):
        if not set(incident.payload["scopes"]) & set(state.open_since_ms):
            incidents.close_incident(unit, incident, reason=reason)


def _view(unit: UnitOfWork, row: Breaker) -> BreakerView:
    state = msgspec.convert(row.state, BreakerState)
    policy, now_ms = active_policy(unit.session).health.breaker, to_ms(unit.now)
    counts = fleet_counts(unit.session, proposed_gpus(unit))
    proposed = Counter(scope for place in counts.places.values() for scope in place.scopes())
    names = {FLEET, FLEET_WINDOW, *state.open_since_ms, *(scope for each in state.quarantined for scope in each.scopes)}
    scopes = [
        Scope(
            name=scope,
            cap=breaker.cap_of(scope, counts, policy),
            num_counted=breaker.num_counted(state, scope, policy, now_ms),
            num_proposed=proposed[scope],
            opened_at=_time(state.open_since_ms.get(scope)),
            closed_at=_time(state.closed_ms.get(scope)),
        )
        for scope in names
    ]
    scopes.sort(key=lambda each: (each.opened_at is None, each.cap - each.num_counted, each.name))
    return BreakerView(row.name, scopes)


def _time(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else to_time(at_ms)
