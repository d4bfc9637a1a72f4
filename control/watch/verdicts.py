"""Verdicts: stored once for each attempt, kind and step, and dismissed by operators where they were false alarms."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from sqlalchemy import Select, func, or_, select

from control.attempts.attempts import LoadedAttempt, lock_attempt
from control.attempts.reruns import RERUN_KINDS, blame_hosts, suspect_hosts
from control.core.late_reports import note_late
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork, declare_action
from control.watch.blame import blame, withdraw
from control.watch.types import VerdictRecord
from muster.db.models import AttemptHost, VerdictRow
from muster.domain.errors import NotFoundError
from muster.domain.ids import NodeId, VerdictId
from muster.domain.job.verdicts import BLAMES_PROGRAM, VerdictKind, VerdictReaction, VerdictState
from muster.domain.principals import Permission
from muster.domain.states import Cause
from muster.identity import new_id
from watch.verdicts import Verdict

DISMISS: Final = declare_action("verdict.dismiss")
MOST_OF_A_KIND: Final = 100
"""Verdicts of one kind on one attempt: a program may report any number of faults of its values."""
_STOPS: Final = frozenset({VerdictReaction.RESTART, VerdictReaction.HOLD})
"""A verdict that stops its attempt is always stored: the next attempt is placed by it."""
_MOST_EVIDENCE: Final = 50
_LONGEST_TEXT: Final = 2_000
_BEFORE_A_VERDICT: Final = timedelta(hours=1)
"""No longer before its verdict, as a rule, began what the verdict explains."""


def record_verdict(
    unit: UnitOfWork, loaded: LoadedAttempt, found: Verdict, node_id: NodeId | None, reaction: VerdictReaction
) -> VerdictRow | None:
    """Store a verdict on a locked attempt with its event, and let it blame the GPU or host that it names.

    Return None if the attempt has such a one, or as many of its kind as are stored of one attempt. Such a one: of kind
    and step; of a straggler, of cause and ranks that stands, or that was dismissed as a false alarm.
    """
    if has_twin(unit, loaded, found) or (reaction not in _STOPS and _is_full(unit, loaded, found.kind)):
        return None
    sentence, evidence = bounded(found)
    row = VerdictRow(
        id=VerdictId(new_id("verdict")),
        attempt_id=loaded.attempt.id,
        job_id=loaded.job.id,
        tenant_id=loaded.job.tenant_id,
        kind=found.kind,
        cause=found.cause,
        ranks=list(found.ranks),
        node_id=node_id,
        gpu=found.gpu,
        phase=found.phase,
        step=found.step,
        operation=found.operation[:_LONGEST_TEXT],
        frame=None if found.frame is None else asdict(found.frame),
        evidence=evidence,
        sentence=sentence,
        reaction=reaction,
        state=VerdictState.STANDING,
        created_at=unit.now,
    )
    unit.session.add(row)
    unit.emit(
        "attempt.verdict",
        "attempt",
        loaded.attempt.id,
        tenant_id=loaded.job.tenant_id,
        payload={
            "job_id": loaded.job.id,
            "verdict_id": row.id,
            "kind": row.kind,
            "cause": row.cause,
            "ranks": row.ranks,
            "node_id": node_id,
            "step": row.step,
            "reaction": reaction,
            "reason": row.sentence,
        },
    )
    blame(unit, loaded, row)
    return row


def bounded(found: Verdict) -> tuple[str, list[str]]:
    """Return sentence and evidence of a verdict as they are stored: a program writes parts of them."""
    return found.sentence[:_LONGEST_TEXT], [line[:_LONGEST_TEXT] for line in found.evidence[:_MOST_EVIDENCE]]


def has_twin(unit: UnitOfWork, loaded: LoadedAttempt, found: Verdict) -> bool:
    """Return whether a locked attempt has such a verdict already."""
    return unit.session.scalar(_twin(loaded, found)) is not None


def _is_full(unit: UnitOfWork, loaded: LoadedAttempt, kind: VerdictKind) -> bool:
    of_kind = select(func.count()).where(VerdictRow.attempt_id == loaded.attempt.id, VerdictRow.kind == kind)
    return (unit.session.scalar(of_kind) or 0) >= MOST_OF_A_KIND


def _twin(loaded: LoadedAttempt, found: Verdict) -> Select[VerdictId]:
    of_kind = select(VerdictRow.id).where(VerdictRow.attempt_id == loaded.attempt.id, VerdictRow.kind == found.kind)
    if found.kind is not VerdictKind.STRAGGLER:
        return of_kind.where(VerdictRow.step == found.step)
    is_open = or_(VerdictRow.ended_at.is_(None), VerdictRow.state == VerdictState.DISMISSED)
    return of_kind.where(VerdictRow.cause == found.cause, VerdictRow.ranks == list(found.ranks), is_open).limit(1)


def dismiss(unit: UnitOfWork, verdict_id: VerdictId, *, reason: str) -> VerdictRecord:
    """State that a verdict was a false alarm: it blames no host any more. Twice is the same as once.

    Raises:
        NotFoundError: there is no such verdict.
    """
    unit.principal.require(Permission.INCIDENT_WRITE)
    attempt_id = unit.session.scalar(select(VerdictRow.attempt_id).where(VerdictRow.id == verdict_id))
    if attempt_id is None:
        raise NotFoundError
    loaded = lock_attempt(unit, attempt_id)
    row = unit.session.get_one(VerdictRow, verdict_id, with_for_update=True)
    if row.state is VerdictState.DISMISSED:
        return record_of(row, VerdictRecord)
    row.state = VerdictState.DISMISSED
    row.dismissed_at, row.dismissed_by, row.dismiss_reason = unit.now, unit.principal.name, reason
    note_late(unit, row.created_at - _BEFORE_A_VERDICT, row.ended_at)
    if row.burn_in_next_at is not None or row.burn_in_id is not None:
        row.burn_in_next_at = unit.now  # its keeper gives the burn-in up
    unit.session.flush()
    _clear_hosts(unit, loaded, row)
    withdraw(unit, loaded, row, reason=reason)
    payload = {"job_id": row.job_id, "verdict_id": row.id, "kind": row.kind, "cause": row.cause, "reason": reason}
    unit.emit("attempt.verdict_dismissed", "attempt", attempt_id, tenant_id=row.tenant_id, payload=payload)
    unit.audit("verdict.dismiss", "verdict", row.id, reason=reason, detail={"attempt_id": attempt_id})
    return record_of(row, VerdictRecord)


def _clear_hosts(unit: UnitOfWork, loaded: LoadedAttempt, row: VerdictRow) -> None:
    """Take the blame from the hosts that the verdict has blamed, unless another one that stands blames them too."""
    cause = loaded.attempt.cause
    if row.cause in BLAMES_PROGRAM:
        return
    if cause is Cause.CORRUPTION and row.kind in RERUN_KINDS:
        _clear(unit, loaded, row, suspect_hosts(loaded.job, row, loaded.hosts))
        blame_hosts(unit.session, loaded.job, loaded.attempt, loaded.hosts)
    elif cause in {None, Cause.HANG, Cause.HOT_SWAP}:
        _clear(unit, loaded, row, [host for host in loaded.hosts if host.node_id == row.node_id])


def _clear(unit: UnitOfWork, loaded: LoadedAttempt, row: VerdictRow, hosts: Sequence[AttemptHost]) -> None:
    others = select(VerdictRow.node_id).where(
        VerdictRow.attempt_id == loaded.attempt.id,
        VerdictRow.id != row.id,
        VerdictRow.state == VerdictState.STANDING,
        VerdictRow.cause.not_in(BLAMES_PROGRAM),
    )
    blamed = set(unit.session.scalars(others).all())
    for host in hosts:
        host.is_at_fault &= host.node_id in blamed
