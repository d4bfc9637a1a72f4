"""The keeper of idle attempts: GPUs that are assigned and known to do nothing are reported, and later taken back.

Only the agents' own samples show that a GPU does nothing; a gap in them counts as work, and so does a reported step.
``policy.watch.idle`` says how long, and whether anything is taken back.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from sqlalchemy import ColumnElement, exists, func, or_, select
from sqlalchemy.orm import Session

from control.attempts.attempts import LoadedAttempt, lock_attempt, stop_attempt
from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action
from control.placement.resizing import fewest_hosts, shrink_to_fewest
from control.policy.policies import active_policy
from control.telemetry.history import samples_of_all
from control.watch.gpu_use import uses_in
from control.watch.host_evidence import RECENT, gpus_of
from muster.db.models import Attempt, Event, TrainingRank
from muster.domain.errors import MusterError
from muster.domain.ids import AttemptId, GpuUuid, NodeId
from muster.domain.policy.document import Policy
from muster.domain.policy.watch import IdlePolicy
from muster.domain.principals import Permission, Principal
from muster.domain.states import AttemptState, StopReason
from muster.domain.times import to_ms
from watch.progress.gpu_work import was_idle

JUDGE: Final = declare_action("idle.judge")
NOTICE: Final = "attempt.idle"
OVER: Final = "attempt.idle_over"
CONTINUES_ON: Final = "nodes"
"""In the payload of a notice: the number of hosts on which the job continues."""
TURNS: Final = 5
"""Each pass reads the samples of one in so many attempts: an hour without work need not be known to the minute."""
_NO_SIGN: Final = 0x7FFFFFFF
"""The least of all hashes has no absolute value."""
_log = structlog.get_logger(__name__)


class IdleRounds:
    def __init__(self, units: UnitOfWorkFactory, principal: Principal) -> None:
        self._units = units
        self._principal = principal
        self._turn = 0

    def once(self) -> int:
        """Judge those with a notice, and the next part of the others. Return how many have a notice then."""
        self._turn = (self._turn + 1) % TURNS
        with self._units.read() as session:
            due = _due(session, active_policy(session).watch.idle, self._units.clock(), self._turn)
        num_idle = 0
        for attempt_id in due:
            try:
                num_idle += judge_idle(self._units, self._principal, attempt_id)
            except MusterError as error:
                _log.warning("idleness_not_judged", attempt_id=attempt_id, fault=error.detail)
        return num_idle


def judge_idle(units: UnitOfWorkFactory, principal: Principal, attempt_id: AttemptId) -> bool:
    """Give the attempt its notice, take it back, or stop the attempt. Return whether it has a notice then."""
    with units.begin(principal, JUDGE, quiet=True) as unit:
        unit.principal.require(Permission.SYSTEM_RUN)
        policy = active_policy(unit.session)
        since = unit.now - timedelta(seconds=policy.watch.idle.after_s)
        is_idle = policy.watch.idle.mode != "off" and _is_idle(unit, attempt_id, since)
    with units.begin(principal, JUDGE, quiet=True) as unit:  # no job is locked while samples are read
        loaded = lock_attempt(unit, attempt_id)
        if not _may_be_stopped(loaded.attempt):
            return False
        if is_idle:
            _notify(unit, loaded, policy.watch.idle, since)
            _stop_if_due(unit, loaded, policy)
        elif loaded.attempt.idle_since is not None:
            loaded.attempt.idle_since = loaded.attempt.idle_stop_at = None
            _report(unit, loaded, OVER, {"reason": "its GPUs work again, or what they do is unknown"})
        return loaded.attempt.idle_since is not None


def _due(session: Session, policy: IdlePolicy, now: datetime, turn: int) -> Sequence[AttemptId]:
    has_notice = Attempt.idle_since.is_not(None)
    since = now - timedelta(seconds=policy.after_s)
    is_next = func.mod(func.hashtext(Attempt.id).op("&")(_NO_SIGN), TURNS) == turn
    is_old = (Attempt.running_at <= since) & is_next & ~_has_trained(since)
    query = select(Attempt.id).where(Attempt.state == AttemptState.RUNNING, Attempt.stop_reason.is_(None))
    return session.scalars(query.where(has_notice if policy.mode == "off" else or_(has_notice, is_old))).all()


def _has_trained(since: datetime) -> ColumnElement[bool]:
    own = (TrainingRank.attempt_id == Attempt.id) & TrainingRank.step.is_not(None)
    return exists().where(own, TrainingRank.updated_at > since)


def _may_be_stopped(attempt: Attempt) -> bool:
    return attempt.state is AttemptState.RUNNING and attempt.stop_reason is None and attempt.ending_cause is None


def _is_idle(unit: UnitOfWork, attempt_id: AttemptId, since: datetime) -> bool:
    query = select(Attempt.running_at).where(Attempt.id == attempt_id, ~_has_trained(since))
    running_at = unit.session.scalar(query)
    if running_at is None or running_at > since:
        return False
    by_node = gpus_of(unit, attempt_id)
    begins = (max(since, unit.now - RECENT), since)  # most GPUs that work did so in the last minutes
    return bool(by_node) and all(_were_idle(unit, by_node, begin) for begin in begins)


def _were_idle(unit: UnitOfWork, by_node: Mapping[NodeId, Sequence[GpuUuid]], since: datetime) -> bool:
    span_s = to_ms(since) / 1000, to_ms(unit.now) / 1000
    for node_id, gpus in by_node.items():
        found = samples_of_all(unit, gpus, {node_id}, since, unit.now)
        if not all(was_idle(uses_in(found[gpu]), *span_s) for gpu in gpus):
            return False
    return True


def _notify(unit: UnitOfWork, loaded: LoadedAttempt, policy: IdlePolicy, since: datetime) -> None:
    """Give the notice once, and again, with a new deadline, where the policy now gives it another meaning."""
    attempt = loaded.attempt
    is_new, takes_back = attempt.idle_since is None, policy.mode == "on"
    fewest = fewest_hosts(loaded) if takes_back and policy.shrinks else None
    is_as_before = takes_back == (attempt.idle_stop_at is not None)
    if not is_new and is_as_before and (not takes_back or fewest == _announced_hosts(unit, attempt.id)):
        return
    attempt.idle_since = since if attempt.idle_since is None else attempt.idle_since
    attempt.idle_stop_at = unit.now + timedelta(seconds=policy.notice_s) if takes_back else None
    words = f"its GPUs have done nothing for {policy.after_s:g} s"
    if attempt.idle_stop_at is None:
        words += ", and the policy lets it keep them; cancel it if it waits for nothing"
    else:
        at = attempt.idle_stop_at.isoformat(timespec="seconds")
        words += f"; unless they work before {at}, {_what_follows(loaded, fewest)}"
    deadline = None if attempt.idle_stop_at is None else attempt.idle_stop_at.isoformat()
    payload = {"idle_since": attempt.idle_since.isoformat(), "deadline_at": deadline, "reason": words}
    _report(unit, loaded, NOTICE, payload if fewest is None else {**payload, CONTINUES_ON: fewest})


def _announced_hosts(unit: UnitOfWork, attempt_id: AttemptId) -> int | None:
    """Return on how many hosts the newest notice says that the job continues; None: it is stopped."""
    query = select(Event.payload[CONTINUES_ON].as_integer()).where(Event.subject_id == attempt_id, Event.kind == NOTICE)
    return unit.session.scalar(query.order_by(Event.serial.desc()).limit(1))


def _what_follows(loaded: LoadedAttempt, fewest: int | None) -> str:
    if fewest is None:
        return "it is stopped and its job HELD"
    return f"it continues on {fewest} of its {len(loaded.hosts)} hosts"


def _stop_if_due(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy) -> None:
    attempt = loaded.attempt
    if attempt.idle_stop_at is None or attempt.idle_stop_at > unit.now or attempt.idle_since is None:
        return
    detail = f"its GPUs have done nothing since {attempt.idle_since.isoformat(timespec='seconds')}"
    if policy.watch.idle.shrinks and shrink_to_fewest(unit, loaded, detail):
        return
    stop_attempt(unit, loaded, StopReason.IDLE, policy, detail=detail)


def _report(unit: UnitOfWork, loaded: LoadedAttempt, kind: str, detail: Mapping[str, object]) -> None:
    payload = {"job_id": loaded.job.id, **detail}
    unit.emit(kind, "attempt", loaded.attempt.id, tenant_id=loaded.job.tenant_id, payload=payload)
