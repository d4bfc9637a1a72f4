"""Re-runs of suspect steps: reports of the ranks become a verdict with its cause, and evidence that is reported.

    replica_fault            verdict, cause ``minority`` if most copies agree, else ``undecided``
    rerun in place           the same verdict: transient, persistent, undecided, or repeated
    rerun elsewhere          the verdict of the first attempt: program, persistent or undecided

A tenant's program states all of it, so nothing of it quarantines a GPU. GPUs and hosts of ranks are ours. A verdict
that names a GPU becomes reported evidence (``blame``), and its GPU gets a burn-in (``control.health.burn_ins``). One
that other GPUs have shown taints the job's own generations since its onset (``control.checkpoints.doubt``).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
from sqlalchemy import select

from control.attempts.attempts import LoadedAttempt, lock_attempt
from control.attempts.ranks import gpus_by_rank, num_ranks, ranks_of
from control.attempts.reruns import OVER, RERUN_KINDS, WANTED, charged_from, may_be_wanted, wanted_of
from control.checkpoints.doubt import taint_from_step
from control.core.unit_of_work import UnitOfWork
from control.watch.blame import withdraw
from control.watch.rerun_verdicts import only_host, rewrite, verdict_on
from control.watch.verdicts import record_verdict
from muster.db.models import VerdictRow
from muster.domain.ids import AttemptId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.policy.document import Policy
from muster.wire.operations import SuspectOperation
from muster.wire.training import ReplicaFault, Rerun
from watch.reruns.judge import RerunCause, RerunOutcome, judge_elsewhere, judge_in_place
from watch.reruns.results import from_document, result_of, to_document
from watch.verdicts import Verdict

_KIND_OF: Final = {"replica_fault": VerdictKind.CORRUPTION, "value_fault": VerdictKind.VALUE_FAULT}
_MOST_NAMED: Final = 16
MOST_REPORTS: Final = 4
"""Re-runs in place that one verdict takes: a program may repeat its report without end."""


def note_replica_fault(unit: UnitOfWork, loaded: LoadedAttempt, message: ReplicaFault) -> None:
    """Store the verdict on copies that differ. A re-run may decide its cause later."""
    ranks = () if message.is_of_buffers else _own_ranks(loaded, message.ranks)  # a program may have changed one itself
    cause = RerunCause.MINORITY if ranks else RerunCause.UNDECIDED
    outcome = RerunOutcome(cause, ranks, "its steps have not been run again")
    steps = (message.since + 1, message.step)
    found = _verdict(unit, loaded, VerdictKind.CORRUPTION, outcome, steps, message.tensor, (message.reason,))
    record_verdict(unit, loaded, found, only_host(loaded, ranks), VerdictReaction.NONE)


def note_rerun(unit: UnitOfWork, loaded: LoadedAttempt, message: Rerun, policy: Policy) -> None:
    """Take a report on a re-run of a locked attempt."""
    if message.place == "in_place":
        _note_in_place(unit, loaded, message, policy)
    else:
        _note_elsewhere(unit, loaded, message, policy)


def _note_in_place(unit: UnitOfWork, loaded: LoadedAttempt, message: Rerun, policy: Policy) -> None:
    outcome = judge_in_place(message.found, _own_ranks(loaded, message.ranks))
    kind = _KIND_OF[message.fault]
    row = _verdict_about(unit, loaded.attempt.id, kind, message.step)
    if row is None:
        steps = (message.from_step + 1, message.step)
        found = _verdict(unit, loaded, kind, outcome, steps, message.tensor, ())
        node_id = only_host(loaded, outcome.ranks)
        row = record_verdict(unit, loaded, found, node_id, VerdictReaction.NONE)
    if row is None or row.state is not VerdictState.STANDING:
        return  # a person has answered it
    known = row.rerun or {}
    num = known.get("num", 0) + 1
    if known.get("state") in {WANTED, OVER} or num > MOST_REPORTS:
        return
    is_wanted = outcome.cause is RerunCause.REPEATED and may_be_wanted(unit.session, loaded.job.id, policy)
    places = _places(unit, loaded)
    first = result_of(
        message.results,
        places,
        end_step=message.step,
        is_again=True,
        from_step=message.from_step,
        num_ranks=message.num_ranks,
    )
    row.rerun = {
        "state": WANTED if is_wanted else None,
        "num": num,
        "from_step": message.from_step,
        "first_bad": message.first_bad,
        "suspects": list(_own_ranks(loaded, message.ranks)),
        "first": to_document(first),
        "operation": _operation(message.operation),
    }
    row.step = message.step
    _decide(unit, loaded, row, outcome, message.reason)


def _note_elsewhere(unit: UnitOfWork, loaded: LoadedAttempt, message: Rerun, policy: Policy) -> None:
    row = wanted_of(unit.session, loaded.job.id)
    if row is None or row.rerun is None or row.attempt_id == loaded.attempt.id or row.step != message.step:
        return
    first, suspects = from_document(row.rerun["first"]), row.rerun["suspects"]
    if first.num_ranks not in {0, message.num_ranks}:
        return  # it trains other parts of the samples on each rank: a later attempt decides
    second = result_of(
        message.results,
        _places(unit, loaded),
        end_step=message.end_step,
        is_again=message.is_again,
        from_step=message.from_step,
        num_ranks=message.num_ranks,
    )
    outcome = judge_elsewhere(
        first,
        second,
        first_bad=row.rerun["first_bad"],
        suspects=suspects,
        is_of_values=VerdictKind(row.kind) is VerdictKind.VALUE_FAULT,
    )
    row.rerun = {
        **row.rerun,
        "state": OVER,
        "elsewhere": to_document(second),
        "elsewhere_attempt_id": loaded.attempt.id,
    }
    if second.ranks.keys() & set(suspects or first.ranks):
        loaded.attempt.charged_from = charged_from(unit.session, loaded.attempt, unit.now, policy)
    first_attempt = lock_attempt(unit, row.attempt_id)
    _decide(unit, first_attempt, row, outcome, message.reason)
    if outcome.cause is RerunCause.PERSISTENT:
        taint_from_step(unit, first_attempt.attempt, row.rerun["first_bad"])


def _decide(unit: UnitOfWork, first: LoadedAttempt, row: VerdictRow, outcome: RerunOutcome, reason: str) -> None:
    """Store the outcome on the verdict. ``first``: the attempt in which the fault was found."""
    if not outcome.ranks and outcome.cause is not RerunCause.REPEATED:
        withdraw(unit, first, row, reason=outcome.why)
    if outcome.cause is RerunCause.REPEATED:  # most copies still name a rank, if they did
        outcome = replace(outcome, ranks=tuple(row.ranks))
    steps = ((row.rerun or {}).get("from_step", row.step - 1) + 1, row.step)
    kind = VerdictKind(row.kind)
    found = _verdict(unit, first, kind, outcome, steps, row.operation, (*row.evidence, reason))
    rewrite(unit, first, row, found)


def _verdict(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    kind: VerdictKind,
    outcome: RerunOutcome,
    steps: tuple[int, int],
    tensor: str,
    evidence: Sequence[str],
) -> Verdict:
    what = "wrong values" if kind is VerdictKind.CORRUPTION else "a value that is not finite, or a spike,"
    where = f" in {tensor}" if tensor else ""
    words = f"{what}{where} in steps {steps[0]} to {steps[1]}; {outcome.why}"
    return verdict_on(unit, loaded, kind, outcome, step=steps[1], operation=tensor, what=words, evidence=evidence)


def _verdict_about(unit: UnitOfWork, attempt_id: AttemptId, kind: VerdictKind, step: int) -> VerdictRow | None:
    """Return the verdict on the fault that was found after ``step``: a GPU's copies are compared one step later."""
    query = select(VerdictRow).where(
        VerdictRow.attempt_id == attempt_id,
        VerdictRow.kind == kind,
        VerdictRow.kind.in_(RERUN_KINDS),
        VerdictRow.step.in_((step, step - 1)),
    )
    return unit.session.scalar(query.order_by(VerdictRow.step.desc()).limit(1).with_for_update())


def _own_ranks(loaded: LoadedAttempt, ranks: Sequence[int]) -> tuple[int, ...]:
    """Return the ranks that the attempt has: a program may name any number."""
    world = num_ranks(loaded)
    return tuple(dict.fromkeys(rank for rank in ranks if rank < world))[:_MOST_NAMED]


def _places(unit: UnitOfWork, loaded: LoadedAttempt) -> dict[int, str]:
    """Return the GPU of each rank, or its host if ranks have no GPU of their own."""
    hosts: dict[int, str] = {rank: host.node_id for host in loaded.hosts for rank in ranks_of(loaded, host)}
    return {**hosts, **gpus_by_rank(unit, loaded)}


def _operation(document: dict[str, Any] | None) -> dict[str, Any] | None:
    if document is None:
        return None
    try:
        found = msgspec.convert(document, SuspectOperation)
    except msgspec.ValidationError:
        return None
    return msgspec.structs.asdict(found)
