"""The pairwise check of a gang before it starts, over rows: members, the meetings of each host, and the result.

The state of the check is stored in the attempt's own row, so a restarted control plane continues with it. The caller
holds the job's row.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt, step_attempt, wake
from control.attempts.mapping import attempt_lifecycle, job_request
from control.core.lease_grace import lease_grace_since_ms
from control.core.unit_of_work import UnitOfWork
from control.evidence.inbox import sample_row
from health.pairwise.check import PairwiseLimits
from health.pairwise.proof import Host
from health.pairwise.start import (
    OPEN_CHECKS,
    CheckState,
    HostReport,
    Member,
    StartCheck,
    accept_report,
    blames,
    finding_of,
    ids_of,
    in_words,
    joined,
    meeting_of,
    moved_on,
    result_of,
)
from muster.db.models import Attempt, Node
from muster.db.queries.telemetry import add_signals
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import NodeId
from muster.domain.lifecycle import attempt as attempts
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.document import Policy
from muster.domain.states import AttemptState
from muster.domain.strict import require_clean_document
from muster.domain.times import to_ms
from muster.wire.host import AttemptPairwiseOrder
from muster.wire.meeting import CALLED_OFF, CANNOT, ENDED, PairwiseOrder, PairwiseResult

_LEAST_HOSTS: Final = 2


class _Place(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)
    port: Annotated[int, Field(ge=1, le=65_535)]
    has_gpu: bool


def await_meetings(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy) -> None:
    """Begin the check at a gang's first claim, where its tier's policy requires it."""
    attempt, tier = loaded.attempt, policy.tiers.get(loaded.job.tier)
    if tier is None or tier.pairwise_check_s == 0 or len(loaded.hosts) < _LEAST_HOSTS:
        return
    if attempt.state is not AttemptState.PLACED or attempt.pairwise is not None:
        return
    names = _names(unit, loaded)
    asked = policy.dispatch.pairwise
    check = StartCheck(
        hosts=tuple(names[part.node_id] for part in loaded.hosts),
        round_s=tier.pairwise_check_s,
        gather_bytes=asked.gather_bytes,
        num_gathers=asked.num_gathers,
        limits=PairwiseLimits(rounds_max=asked.rounds_max, slow_fraction=asked.slow_fraction),
    )
    attempt.pairwise = msgspec.to_builtins(check)


def join(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, record: dict[str, Any]) -> None:
    """Add a host that is ready and reports where it can be met; an older one does not, and takes no part.

    Raises:
        ValidationFailedError: its report cannot be read.
    """
    check = _read(loaded.attempt)
    if check is None or "port" not in record:
        return
    place = _place_in(record)
    node = unit.session.get_one(Node, node_id)
    loaded.attempt.pairwise = msgspec.to_builtins(
        joined(check, node.name, Member(node_id, node.address, place.port, place.has_gpu))
    )


def _place_in(record: dict[str, Any]) -> _Place:
    try:
        return _Place.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        message = f"the host's port for meetings cannot be read: {fault['loc'][0]}: {fault['msg']}"
        raise ValidationFailedError(message) from error


def take(unit: UnitOfWork, loaded: LoadedAttempt, node_id: NodeId, record: dict[str, Any]) -> int:
    """Store the result of a meeting, as reported by one of its hosts. Return 1 where it had effect.

    Raises:
        ValidationFailedError: it cannot be read.
    """
    check = _read(loaded.attempt)
    host = None if check is None else _host_of(check, node_id)
    if check is None or host is None:
        return 0
    try:
        require_clean_document(record)
        met = msgspec.convert(record, PairwiseResult)
    except (ValueError, msgspec.ValidationError) as error:
        message = f"the result of a meeting cannot be read: {error}"
        raise ValidationFailedError(message) from error
    said = HostReport(
        met.rate_bytes_per_s,
        met.why,
        is_called_off=met.why == CALLED_OFF,
        is_unable=met.why.startswith(CANNOT),
        is_own_fault=met.why.startswith(ENDED),
    )
    after = accept_report(check, host, met.round, said, met.port, to_ms(unit.now))
    if after is check:
        return 0
    loaded.attempt.pairwise = msgspec.to_builtins(after)
    told = {"node_id": node_id, "round": met.round, "rate_bytes_per_s": met.rate_bytes_per_s, "reason": met.why}
    _report(unit, loaded, "host_met", told)
    return 1


def move_on(unit: UnitOfWork, loaded: LoadedAttempt, policy: Policy) -> None:
    """Continue once all hosts are ready and a round is over: the next one, the go, or the end of the attempt."""
    check = _read(loaded.attempt)
    if check is None or check.state not in OPEN_CHECKS:
        return
    life = attempt_lifecycle(loaded.attempt, loaded.hosts, job_request(loaded.job), Timers.of(policy))
    if not attempts.are_all_ready(life) or life.ending is not None or life.stop is not None:
        return
    after = moved_on(check, to_ms(unit.now), lease_grace_since_ms(unit))
    if after is check:
        return
    if after.state is CheckState.MEETING:
        _begin_round(unit, loaded, after)
    else:
        _end(unit, loaded, after, policy)
    loaded.attempt.pairwise = msgspec.to_builtins(after)


def orders_for(attempt: Attempt, node_id: NodeId) -> tuple[AttemptPairwiseOrder, ...]:
    """Return the host's current meeting for this attempt: one group at most."""
    if attempt.pairwise is None or attempt.state is not AttemptState.CLAIMING or attempt.ending_cause is not None:
        return ()
    check = _read(attempt)
    host = None if check is None else _host_of(check, node_id)
    group = None if check is None or host is None else meeting_of(check, host)
    if check is None or host is None or group is None or attempt.stop_reason is not None:
        return ()
    number = len(check.rounds)
    order = PairwiseOrder(
        round=number,
        key=f"pairwise/{attempt.id}/{number}/{check.rounds[-1].index(group)}",
        hosts=group.hosts,
        rank=group.hosts.index(host),
        address=check.members[group.hosts[0]].address,
        port=group.port,
        device=check.device,
        gather_bytes=check.gather_bytes,
        num_gathers=check.num_gathers,
        timeout_s=check.round_s,
    )
    return (AttemptPairwiseOrder(attempt_id=attempt.id, order=order),)


def _begin_round(unit: UnitOfWork, loaded: LoadedAttempt, check: StartCheck) -> None:
    groups = [list(group.hosts) for group in check.rounds[-1]]
    _report_why(unit, loaded, check)
    _report(unit, loaded, "pairwise_round", {"round": len(check.rounds), "groups": groups, "reason": in_words(check)})
    for member in check.members.values():
        wake(unit, member.node_id, loaded.attempt.id)


def _end(unit: UnitOfWork, loaded: LoadedAttempt, check: StartCheck, policy: Policy) -> None:
    blamed = blames(check) if check.state is CheckState.FAILED else ()
    told = {
        "rounds": [[_result(result_of(group)) for group in groups] for groups in check.rounds],
        "bad": {each.host: each.why for each in blamed},
        "device": check.device,
        "reason": in_words(check),
    }
    _report(unit, loaded, f"pairwise_{check.state}", told)
    _report_why(unit, loaded, check)
    now_ms = to_ms(unit.now)
    rows = []
    for each in blamed:
        if each.severity is not None:
            node_id = check.members[each.host].node_id
            finding = finding_of(each, each.severity, node_id, now_ms, policy.health)
            rows.append(sample_row(finding, node_id, f"pairwise/{loaded.attempt.id}/{node_id}", unit.now))
    if rows:
        add_signals(unit.session.connection(), rows)
    step_attempt(unit, loaded, attempts.PairwiseDone(ids_of(check, blamed), in_words(check)), policy)


def _result(result: Any) -> dict[str, Any]:
    return {
        "hosts": list(result.hosts),
        "rate_bytes_per_s": result.rate_bytes_per_s,
        "why": result.why,
        "silent": sorted(result.silent),
    }


def _report_why(unit: UnitOfWork, loaded: LoadedAttempt, check: StartCheck) -> None:
    """Store why the start waits, or the result, for readers of the job."""
    loaded.job.state_reason, loaded.job.updated_at = in_words(check), unit.now


def _report(unit: UnitOfWork, loaded: LoadedAttempt, what: str, details: dict[str, Any]) -> None:
    attempt = loaded.attempt
    payload = {"job_id": attempt.job_id, "number": attempt.number, **details}
    unit.emit(f"attempt.{what}", "attempt", attempt.id, tenant_id=attempt.tenant_id, payload=payload)


def _read(attempt: Attempt) -> StartCheck | None:
    return None if attempt.pairwise is None else msgspec.convert(with_present_names(attempt.pairwise), StartCheck)


def with_present_names(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored check with present names: the release before had another name for a group's ``reports``."""
    rounds = [
        [{"reports" if name == "said" else name: value for name, value in group.items()} for group in groups]
        for groups in stored.get("rounds", ())
    ]
    return {**stored, "rounds": rounds}


def _host_of(check: StartCheck, node_id: NodeId) -> Host | None:
    return next((host for host, member in check.members.items() if member.node_id == node_id), None)


def _names(unit: UnitOfWork, loaded: LoadedAttempt) -> dict[NodeId, str]:
    ids = [part.node_id for part in loaded.hosts]
    found = unit.session.execute(select(Node.id, Node.name).where(Node.id.in_(ids)))
    return {row.id: row.name for row in found}
