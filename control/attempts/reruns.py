"""Re-runs on other GPUs: what an attempt whose fault repeated itself leaves to its job, and what the next one gets.

A verdict's column ``rerun`` keeps them (``control.watch.reruns``)::

    attempt 1: fault, re-run in place: the same ── verdict, WANTED ── ends as ``corruption``, its hosts are avoided
    attempt 2: elsewhere, same steps ── results ── judged, OVER
"""

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from control.attempts.mapping import job_request
from control.checkpoints.doubt import doubt_about
from control.checkpoints.types import Doubt
from muster.db.models import Attempt, AttemptHost, Checkpoint, Job, Tenant, VerdictRow
from muster.domain.ids import JobId
from muster.domain.job.verdicts import BLAMES_PROGRAM, VerdictKind, VerdictState
from muster.domain.policy.document import Policy
from muster.domain.states import Cause

WANTED: Final = "wanted"
REQUESTED: Final = "requested"
"""The program asked for other GPUs by a declared exit code, and compares the results itself."""
OVER: Final = "over"
RERUN_KINDS: Final = (VerdictKind.CORRUPTION, VerdictKind.VALUE_FAULT)
"""Kinds of verdicts whose steps are run again."""
_MOST_HOSTS: Final = 2
"""Without a suspect rank, a job of so many hosts leaves all of them. A larger one leaves none."""


def wanted_of(session: Session, job_id: JobId) -> VerdictRow | None:
    """Return the job's newest verdict whose steps are to be run again elsewhere; None if its job is past them."""
    query = select(VerdictRow).where(
        VerdictRow.job_id == job_id,
        VerdictRow.kind.in_(RERUN_KINDS),
        VerdictRow.state == VerdictState.STANDING,
        VerdictRow.rerun["state"].astext == WANTED,
    )
    row = session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))
    if row is None:
        return None
    farther = select(Checkpoint.generation).where(
        Checkpoint.job_id == job_id, Checkpoint.step >= row.step, Checkpoint.verified_at.is_not(None)
    )
    return row if session.scalar(farther.limit(1)) is None else None


def may_be_wanted(session: Session, job_id: JobId, policy: Policy) -> bool:
    """Return whether the job has re-runs elsewhere left."""
    rule = policy.watch.reruns
    if not rule.is_on:
        return False
    spent = select(func.count()).where(VerdictRow.job_id == job_id, VerdictRow.rerun["state"].astext.is_not(None))
    return (session.scalar(spent) or 0) < rule.of_a_job


def charged_from(session: Session, attempt: Attempt, now: datetime, policy: Policy) -> datetime:
    """Return since when an attempt that ran suspect steps again counts: the time before is free.

    The job and the day bound the free time: a program may report any number of re-runs. The tenant's row stays locked,
    so of two that are decided at once the second counts the first.
    """
    rule = policy.watch.reruns
    session.scalars(select(Tenant.id).where(Tenant.id == attempt.tenant_id).with_for_update(key_share=True)).one()
    free = func.extract("epoch", Attempt.charged_from - Attempt.placed_at)
    spent = select(func.coalesce(func.sum(free), 0.0)).where(
        Attempt.tenant_id == attempt.tenant_id,
        Attempt.id != attempt.id,
        Attempt.charged_from.is_not(None),
        Attempt.placed_at > now - timedelta(days=1),
    )
    left_s = max(rule.free_s_a_day - float(session.scalar(spent) or 0.0), 0.0)
    return min(attempt.ended_at or now, attempt.placed_at + timedelta(seconds=min(rule.free_s, left_s)))


def order_for(session: Session, attempt: Attempt, policy: Policy) -> str | None:
    """Return the order about re-runs for the programs of an attempt: that it is one, or that one may follow."""
    wanted = wanted_of(session, attempt.job_id)
    if wanted is not None and wanted.attempt_id != attempt.id and wanted.rerun is not None:
        first: dict[str, Any] = wanted.rerun["first"]
        order = {
            "step": wanted.step,
            "first_bad": wanted.rerun["first_bad"],
            "ranks": sorted(int(rank) for rank in first["ranks"]),
            "num_ranks": first.get("num_ranks", 0),
            "is_offered": may_be_wanted(session, attempt.job_id, policy),
        }
        return json.dumps(order)
    return "{}" if may_be_wanted(session, attempt.job_id, policy) else None


def doubt_in(session: Session, attempt: Attempt) -> Doubt | None:
    """Return the doubt about the attempt whose steps this one is to run again: it has to begin before them."""
    wanted = wanted_of(session, attempt.job_id)
    if wanted is None or wanted.attempt_id == attempt.id or wanted.rerun is None:
        return None
    return doubt_about(session, session.get_one(Attempt, wanted.attempt_id), wanted.rerun["first_bad"])


def settle_end(session: Session, job: Job, attempt: Attempt, cause: Cause, hosts: Sequence[AttemptHost]) -> str | None:
    """Mark the hosts of suspect ranks, so that the next attempt avoids them. Return why the job is held, if it is."""
    if cause not in {Cause.CORRUPTION, Cause.DIVERGED}:
        return None
    if (program := _decided_here(session, attempt)) is not None:
        return f"{cause}: {program.sentence}; held: correct the program, and release the job to try again"
    if (failed := _failed_validation(session, attempt)) is not None:
        return f"{cause}: {failed.sentence}; held: read its log and the verdict, and release the job to try again"
    if cause is Cause.CORRUPTION:
        blame_hosts(session, job, attempt, hosts)
    return None


def has_requested(session: Session, attempt: Attempt) -> bool:
    """Return whether the attempt's program asked for other GPUs by a declared exit code, within the bound of a job."""
    query = select(VerdictRow.id).where(
        VerdictRow.attempt_id == attempt.id, VerdictRow.rerun["state"].astext == REQUESTED
    )
    return session.scalar(query.limit(1)) is not None


def _failed_validation(session: Session, attempt: Attempt) -> VerdictRow | None:
    """Return the standing verdict of an attempt that ended by a declared exit code after its re-run."""
    rerun = VerdictRow.rerun
    query = select(VerdictRow).where(
        VerdictRow.job_id == attempt.job_id,
        VerdictRow.state == VerdictState.STANDING,
        rerun["is_by_code"].as_boolean(),
        rerun["state"].astext == OVER,
        or_(VerdictRow.attempt_id == attempt.id, rerun["elsewhere_attempt_id"].astext == attempt.id),
    )
    return session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))


def _decided_here(session: Session, attempt: Attempt) -> VerdictRow | None:
    """Return the verdict of an earlier attempt that this one, elsewhere, has shown to be of the program."""
    query = select(VerdictRow).where(
        VerdictRow.job_id == attempt.job_id,
        VerdictRow.kind.in_(RERUN_KINDS),
        VerdictRow.state == VerdictState.STANDING,
        VerdictRow.cause.in_(BLAMES_PROGRAM),
        VerdictRow.rerun["elsewhere_attempt_id"].astext == attempt.id,
    )
    return session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))


def blame_hosts(session: Session, job: Job, attempt: Attempt, hosts: Sequence[AttemptHost]) -> None:
    """Mark the hosts that the newest standing verdict suspects."""
    query = select(VerdictRow).where(
        VerdictRow.attempt_id == attempt.id,
        VerdictRow.kind.in_(RERUN_KINDS),
        VerdictRow.state == VerdictState.STANDING,
        VerdictRow.cause.not_in(BLAMES_PROGRAM),
    )
    row = session.scalar(query.order_by(VerdictRow.id.desc()).limit(1))
    for host in () if row is None else suspect_hosts(job, row, hosts):
        host.is_at_fault = True


def suspect_hosts(job: Job, row: VerdictRow, hosts: Sequence[AttemptHost]) -> Sequence[AttemptHost]:
    """Return the hosts of the ranks that a verdict suspects."""
    suspects = (row.rerun or {}).get("suspects") or row.ranks
    per_host = job_request(job).shape.num_ranks_per_node
    places = {rank // per_host for rank in suspects}
    are_all = not suspects and len(hosts) <= _MOST_HOSTS
    return [host for host in hosts if are_all or host.node_rank in places]
