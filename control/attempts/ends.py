"""The end of an attempt by its hosts' records: whether a further attempt would end in the same way."""

from collections.abc import Sequence

from sqlalchemy import and_, exists, or_, select

from control.core.unit_of_work import UnitOfWork
from muster.db.models import Attempt, AttemptHost, Job, Node, PlacementPreflight
from muster.domain.exit.exits import Verdict, classify, parse_exit_record
from muster.domain.exit.rerun_codes import RerunCodes
from muster.domain.ids import NodeId
from muster.domain.job.preflight import PreflightState
from muster.domain.states import Cause, Contact


def ending_of(attempt: Attempt, hosts: Sequence[AttemptHost], rerun_codes: RerunCodes | None = None) -> Verdict | None:
    """Return the verdict on the host whose report is the cause of the end; None if no report is.

    In a gang the name of a host that could not start stands before its proof.
    """
    proof = attempt.ending_proof or ""
    records = [parse_exit_record(host.exit_record) for host in hosts if host.exit_record]
    for verdict in (classify(record, attempt.stop_reason, rerun_codes=rerun_codes) for record in records):
        if verdict.cause is attempt.ending_cause and (proof == verdict.proof or proof.endswith(f": {verdict.proof}")):
            return verdict
    return None


def is_missing_everywhere(unit: UnitOfWork, job: Job, hosts: Sequence[AttemptHost], cause: Cause) -> bool:
    """Return whether what a host lacked is missing wherever the job may run, as far as is known.

    A tenant's part is, unless it was found elsewhere, which makes it the host's fault. A host's part may be there on
    another host in contact. If the job's last launch failed as well, it is not searched for on ever more hosts.
    """
    if cause is Cause.USER_ERROR:
        return not any(host.ready_at is not None for host in hosts)  # one may have become ready since the report
    if job.launch_failures > 0:
        return True
    others = exists().where(Node.contact == Contact.LIVE, Node.id.not_in([host.node_id for host in hosts]))
    return not unit.session.scalar(select(others))


def was_found_elsewhere(unit: UnitOfWork, job: Job, attempt: Attempt, node_id: NodeId) -> bool:
    """Return whether another host has found all parts of the job's start.

    It is ready in this attempt, its program ran in the one before, or it did so in the job's last preflight. What an
    older attempt found may have been removed since.
    """
    record = AttemptHost.exit_record
    has_run = and_(
        Attempt.number == attempt.number - 1,
        record["spawn_error"].astext.is_(None),
        or_(record["launcher_exit_code"].astext.is_not(None), record["launcher_signal"].astext.is_not(None)),
    )
    is_ready = and_(Attempt.id == attempt.id, AttemptHost.ready_at.is_not(None))
    found = exists().where(
        Attempt.job_id == job.id,
        AttemptHost.attempt_id == Attempt.id,
        AttemptHost.node_id != node_id,
        or_(is_ready, has_run),
    )
    if unit.session.scalar(select(found)):
        return True
    preflight = unit.session.get(PlacementPreflight, job.id)
    if preflight is None or preflight.state is not PreflightState.PASSED:
        return False
    return preflight.after_attempt >= attempt.number - 1
