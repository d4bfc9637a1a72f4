"""Reports of a host on its part of an attempt: ready, met, started, exited, clean; each has effect once (I14)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import select

from control.attempts import ends, fault_attribution, pairwise_checks
from control.attempts.attempts import LoadedAttempt, cordon_unclean, step_attempt
from control.attempts.mapping import attempt_lifecycle, job_request
from control.attempts.own_parts import own_attempt
from control.attempts.quick_checks import take_quick_check
from control.core.unit_of_work import UnitOfWork, declare_action
from control.hosts.protocol import node_of
from control.policy.policies import active_policy
from control.watch import rerun_codes
from muster.db.models import AttemptHost, Node
from muster.domain.errors import StaleFenceError, ValidationFailedError
from muster.domain.exit.exits import ExitRecord, GpuFault, classify, parse_exit_record
from muster.domain.ids import AttemptId, Fence, NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle.model import Timers, Verdict
from muster.domain.policy.document import Policy
from muster.domain.state_sets import PARTS_THAT_MAY_RUN
from muster.domain.states import Cause, HostPartState
from muster.domain.strict import require_clean_document
from muster.wire.host import PAIRWISE_CAPABILITY, HostReport, ReportAnswer, ReportBatch

REPORT: Final = declare_action("host.report")

_HOW_IT_RAN: Final = ("uid", "uid_reason", "cgroup", "cgroup_reason", "device_files", "device_files_reason")
"""Keys of an exit record: user, cgroup or why there was none, and the protection of other jobs' GPUs."""

_GPUS_UNPROVED: Final = "gpu_processes_unknown"
"""Key of a proof: why processes on the GPUs could not be found out. The host counts as clean as far as is known."""
_MOST_WHY: Final = 500


def report(unit: UnitOfWork, attempt_id: AttemptId, batch: ReportBatch) -> ReportAnswer:
    """Take a host's facts in order; each has effect at most once (I14). Facts about an ended attempt still free GPUs.

    Raises:
        StaleFenceError: a report's fence is not this attempt's, or the host holds no part of it.
        ValidationFailedError: an exit record that cannot be read.
    """
    node_id = node_of(unit, batch.protocol)
    policy = active_policy(unit.session)
    loaded = own_attempt(unit, attempt_id, node_id)
    if loaded is None or any(item.fence != loaded.attempt.fence for item in batch.reports):
        raise StaleFenceError
    accepted = sum(_take_report(unit, loaded, node_id, item, policy) for item in batch.reports)
    pairwise_checks.move_on(unit, loaded, policy)
    go = _may_go(loaded, node_id, policy)
    orders = pairwise_checks.orders_for(loaded.attempt, node_id)
    return ReportAnswer(accepted=accepted, go=go, pairwise_orders=orders, takes=(PAIRWISE_CAPABILITY,))


def _may_go(loaded: LoadedAttempt, node_id: NodeId, policy: Policy) -> bool:
    """Return whether the host may go.

    Most reports are of hosts that do not wait, and a large gang costs much to read.
    """
    part = loaded.host(node_id)
    if part is None or not part.awaits_go or loaded.attempt.go_at is None:
        return False
    life = attempt_lifecycle(loaded.attempt, loaded.hosts, job_request(loaded.job), Timers.of(policy))
    return attempts.may_go(life, node_id)


def _take_report(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, item: HostReport, policy: Policy) -> int:
    part = loaded.host(node_id)
    if part is None:
        return 0
    before, fence = part.state, Fence(item.fence)
    if item.kind == "ready":
        return _take_ready(unit, loaded, part, item, policy)
    if item.kind == "met":
        return pairwise_checks.take(unit, loaded, node_id, item.record)
    if item.kind == "started":
        event: attempts.Event = attempts.Started(node_id, fence, item.boot_id)
    elif item.kind == "exited":
        event = attempts.Exited(node_id, fence, item.boot_id, _verdict(unit, loaded, node_id, item, policy))
        if before in PARTS_THAT_MAY_RUN:
            part.exit_record = item.record
            take_quick_check(unit, loaded, node_id, item.record, policy)
    else:
        if not _is_clean(item.record):
            _note_unclean(unit, loaded, part, item)
            return 0
        event = attempts.Cleaned(node_id, fence, item.boot_id)
    step_attempt(unit, loaded, event, policy)
    if part.state is before:
        return 0
    payload: dict[str, Any] = {"job_id": loaded.job.id, "node_id": node_id, "from": before, "to": part.state}
    payload |= {name: item.record.get(name) for name in _HOW_IT_RAN if item.kind == "exited" and name in item.record}
    if item.kind == "cleaned":
        part.clean_proof = item.record  # it replaces a record of what was left
        payload |= _unproved_in(item.record)
    kind = f"attempt.host_{part.state.lower()}"
    unit.emit(kind, "attempt", loaded.attempt.id, tenant_id=loaded.attempt.tenant_id, payload=payload)
    return 1


def _is_clean(record: Mapping[str, Any]) -> bool:
    try:
        require_clean_document(record)
    except ValueError as error:
        message = f"the proof cannot be read: {error}"
        raise ValidationFailedError(message) from error
    is_clean = record.get("clean", True)
    if not isinstance(is_clean, bool):
        message = f"the proof cannot be read: clean is {is_clean!r}; true or false is accepted"
        raise ValidationFailedError(message)
    return is_clean


def _note_unclean(unit: UnitOfWork, loaded: LoadedAttempt, part: AttemptHost, item: HostReport) -> None:
    """Store that a host is not clean. A late report, after the proof or of an earlier boot, is of no present state."""
    if part.state is HostPartState.CLEAN or part.boot_id not in {None, item.boot_id}:
        return
    why = str(item.record.get("why", "something of the job is left"))[:_MOST_WHY]
    if part.clean_proof is None:
        part.clean_proof = dict(item.record)
        payload = {"job_id": loaded.job.id, "node_id": part.node_id, "reason": why}
        kind, tenant_id = "attempt.host_unclean", loaded.attempt.tenant_id
        unit.emit(kind, "attempt", loaded.attempt.id, tenant_id=tenant_id, payload=payload)
    cordon_unclean(unit, loaded, part.node_id, why)


def _unproved_in(record: Mapping[str, Any]) -> dict[str, str]:
    why = record.get(_GPUS_UNPROVED)
    return {} if why is None else {_GPUS_UNPROVED: str(why)[:_MOST_WHY]}


def _take_ready(unit: UnitOfWork, loaded: LoadedAttempt, part: AttemptHost, item: HostReport, policy: Policy) -> int:
    if part.ready_at is not None:
        return 0
    try:
        require_clean_document(item.record)
    except ValueError as error:
        message = f"the results of the preflight cannot be read: {error}"
        raise ValidationFailedError(message) from error
    pairwise_checks.join(unit, loaded, part.node_id, item.record)
    step_attempt(unit, loaded, attempts.Ready(part.node_id, Fence(item.fence), item.boot_id), policy)
    if part.ready_at is None:
        return 0
    payload = {"job_id": loaded.job.id, "node_id": part.node_id, "checked": item.record.get("looked_at")}
    unit.emit("attempt.host_ready", "attempt", loaded.attempt.id, tenant_id=loaded.attempt.tenant_id, payload=payload)
    return 1


def _verdict(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, item: HostReport, policy: Policy) -> Verdict:
    record = _exit_record_in(item)
    is_elsewhere = record.lacks is not None and ends.was_found_elsewhere(unit, loaded.job, loaded.attempt, node_id)
    stop, attempt = loaded.attempt.stop_reason, loaded.attempt
    is_open = attempt.ending_cause is None or attempt.ending_is_cascade
    faults = fault_attribution.faults_of(unit, attempt, loaded.job, policy) if is_open else {}
    known = fault_attribution.known_on(faults, node_id, policy)
    codes = job_request(loaded.job).rerun_exit_codes
    verdict = classify(record, stop, is_elsewhere=is_elsewhere, faults=known, rerun_codes=codes)
    if codes is not None:
        counted = verdict if is_open else replace(verdict, rerun_code=None)
        verdict = rerun_codes.note_end(unit, loaded, node_id, item.record, counted, policy)
    if verdict.is_cascade and stop is None and (elsewhere := _first_fault(faults)) is not None:
        node_id, fault = elsewhere
        proof = f"{fault.words} on {fault.gpu_uuid}, which others missed: {verdict.proof}"
        return Verdict(Cause.GPU_FAULT, proof, node_id=node_id)
    where = _name_in_gang(unit, loaded, node_id) if item.record.get("spawn_error") else ""
    return Verdict(verdict.cause, where + verdict.proof, verdict.is_cascade, is_reported=verdict.is_reported)


def _exit_record_in(item: HostReport) -> ExitRecord:
    try:
        require_clean_document(item.record)
        return parse_exit_record(item.record)
    except ValueError as error:
        message = f"the exit record cannot be read: {error}"
        raise ValidationFailedError(message) from error


def _first_fault(faults: fault_attribution.Faults) -> tuple[NodeId, GpuFault] | None:
    found = [(node_id, fault) for node_id, of_host in faults.items() for fault in of_host]
    return min(found, key=lambda each: each[1].onset_ms, default=None)


def _name_in_gang(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId) -> str:
    """Return the name of the host of several that could not start, to stand before what it lacked."""
    if len(loaded.hosts) == 1:
        return ""
    return f"{unit.session.scalar(select(Node.name).where(Node.id == node_id))}: "
