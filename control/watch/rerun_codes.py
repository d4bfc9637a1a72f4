"""Exit codes 16 and 17 of a job that declares them (``rerun_exit_codes``): an end becomes a verdict, as a re-run does.

    attempt 1 ends with 16   verdict ``repeated``, REQUESTED ── ends as ``corruption``, its hosts are avoided
    attempt 2, elsewhere     ends with 17: the verdict is decided by what the program says, OVER ── the job is held
    any attempt with 17      without a 16 of the attempt before: a verdict of its own, OVER ── the job is held

The program states all of it, so the evidence is reported. GPUs and hosts are read from the allocations.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sqlalchemy import or_, select

from control.attempts.attempts import LoadedAttempt, lock_attempt
from control.attempts.mapping import job_request
from control.attempts.ranks import gpus_by_rank, num_ranks
from control.attempts.reruns import OVER, REQUESTED, may_be_wanted
from control.core.unit_of_work import UnitOfWork
from control.watch.blame import withdraw
from control.watch.rerun_verdicts import only_host, propose_burn_in, rewrite, verdict_on
from control.watch.verdicts import record_verdict
from muster.db.models import VerdictRow
from muster.domain.exit.exit_record import RankExit, parse_exit_record
from muster.domain.exit.exits import Verdict as ExitVerdict
from muster.domain.exit.rerun_codes import FAILED_VALIDATION, RUN_ELSEWHERE, Stated, StatedCause, stated_by
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction, VerdictState
from muster.domain.policy.document import Policy
from muster.domain.states import Cause
from watch.reruns.judge import RerunCause, RerunOutcome
from watch.verdicts import Verdict

_WHY: Final[Mapping[str, str]] = {
    RerunCause.REPEATED: "the program ran the step again on the same GPU with the same result; other GPUs decide",
    RerunCause.TRANSIENT: "the program ran the step again on the same GPU with another result",
    RerunCause.PERSISTENT: "the program ran the step again on other GPUs with another result",
    RerunCause.PROGRAM: "the program ran the step again on other GPUs with the same result",
    RerunCause.UNDECIDED: "the result failed the program's validation after a re-run: a GPU or the program is wrong",
}
_NO_STEP: Final = 0
"""Step of such a verdict: exit codes name none."""


def note_end(
    unit: UnitOfWork,
    loaded: LoadedAttempt,
    node_id: NodeId,
    record: Mapping[str, Any],
    end: ExitVerdict,
    policy: Policy,
) -> ExitVerdict:
    """Store what a host's exit record says of a declared re-run. Return the end as it counts.

    ``end``: of the host's part. A 16 beyond the re-runs that a job gets counts as ``diverged``.
    """
    codes = job_request(loaded.job).rerun_exit_codes
    row = _row_of(unit, loaded)
    if row is None and end.rerun_code is None:
        return end
    stated = stated_by(_ranks_of(loaded, node_id, record), codes, num_ranks(loaded))
    if row is not None:
        _note_further(unit, loaded, row, stated)
        return end
    if end.rerun_code == FAILED_VALIDATION:
        _note_failed(unit, loaded, stated)
    elif end.rerun_code == RUN_ELSEWHERE and may_be_wanted(unit.session, loaded.job.id, policy):
        _store(unit, loaded, RerunCause.REPEATED, stated, REQUESTED)
    else:
        return replace(end, cause=Cause.DIVERGED, proof=f"{end.proof}; no run on other GPUs is left", is_reported=False)
    return end


def _ranks_of(loaded: LoadedAttempt, node_id: NodeId, record: Mapping[str, Any]) -> dict[int, RankExit]:
    others = [host.exit_record for host in loaded.hosts if host.exit_record and host.node_id != node_id]
    return {number: rank for each in (*others, record) for number, rank in parse_exit_record(each).ranks.items()}


def _note_failed(unit: UnitOfWork, loaded: LoadedAttempt, stated: Stated) -> None:
    is_in_place = stated.cause is StatedCause.TRANSIENT
    first = None if is_in_place else _requested_before(unit, loaded)
    if first is None:
        _store(unit, loaded, RerunCause.TRANSIENT if is_in_place else RerunCause.UNDECIDED, stated, OVER)
    else:
        _decide(unit, loaded, first, stated)


def _decide(unit: UnitOfWork, loaded: LoadedAttempt, first: VerdictRow, stated: Stated) -> None:
    """Decide the verdict by which an earlier attempt asked for other GPUs. ``loaded``: the attempt that had them."""
    has_moved = not first.gpu or first.gpu not in gpus_by_rank(unit, loaded).values()
    is_known = has_moved and stated.cause in {StatedCause.PERSISTENT, StatedCause.PROGRAM}
    cause = RerunCause(stated.cause) if is_known and stated.cause is not None else RerunCause.UNDECIDED
    first.rerun = {**(first.rerun or {}), "state": OVER, "elsewhere_attempt_id": loaded.attempt.id}
    of_first = lock_attempt(unit, first.attempt_id)
    if cause is RerunCause.PROGRAM:
        withdraw(unit, of_first, first, reason=_WHY[cause])
    ranks = () if cause is RerunCause.PROGRAM else tuple(first.ranks)
    rewrite(unit, of_first, first, _verdict(unit, of_first, cause, ranks, (*first.evidence, stated.line)))


def _requested_before(unit: UnitOfWork, loaded: LoadedAttempt) -> VerdictRow | None:
    """Return the newest verdict by which an earlier attempt of the job asked for other GPUs."""
    query = select(VerdictRow).where(
        VerdictRow.job_id == loaded.job.id,
        VerdictRow.attempt_id != loaded.attempt.id,
        VerdictRow.rerun["state"].astext == REQUESTED,
        VerdictRow.state == VerdictState.STANDING,
    )
    return unit.session.scalar(query.order_by(VerdictRow.id.desc()).limit(1).with_for_update())


def _row_of(unit: UnitOfWork, loaded: LoadedAttempt) -> VerdictRow | None:
    """Return the verdict that another host of the attempt has brought about or decided."""
    rerun = VerdictRow.rerun
    query = select(VerdictRow).where(
        VerdictRow.job_id == loaded.job.id,
        rerun["is_by_code"].as_boolean(),
        or_(VerdictRow.attempt_id == loaded.attempt.id, rerun["elsewhere_attempt_id"].astext == loaded.attempt.id),
    )
    return unit.session.scalar(query.order_by(VerdictRow.id.desc()).limit(1).with_for_update())


def _store(unit: UnitOfWork, loaded: LoadedAttempt, cause: RerunCause, stated: Stated, state: str) -> None:
    ranks = () if stated.rank is None else (stated.rank,)
    found = _verdict(unit, loaded, cause, ranks, (stated.line,))
    row = record_verdict(unit, loaded, found, only_host(loaded, ranks), VerdictReaction.NONE)
    if row is not None:
        row.rerun = {"state": state, "is_by_code": True}
        propose_burn_in(unit, row)
        unit.session.flush()


def _note_further(unit: UnitOfWork, loaded: LoadedAttempt, row: VerdictRow, stated: Stated) -> None:
    """Take what the record of a further host adds to a verdict: the rank at fault, or the cause."""
    if row.state is not VerdictState.STANDING or (stated.rank is None and stated.cause is None):
        return
    if row.attempt_id != loaded.attempt.id:
        if row.cause == RerunCause.UNDECIDED and stated.cause is not None:
            _decide(unit, loaded, row, stated)
        return
    if not row.ranks and stated.rank is not None:
        is_in_place = row.cause == RerunCause.UNDECIDED and stated.cause is StatedCause.TRANSIENT
        cause = RerunCause.TRANSIENT if is_in_place else RerunCause(row.cause)
        rewrite(unit, loaded, row, _verdict(unit, loaded, cause, (stated.rank,), (stated.line,)))


def _verdict(
    unit: UnitOfWork, loaded: LoadedAttempt, cause: RerunCause, ranks: tuple[int, ...], evidence: tuple[str, ...]
) -> Verdict:
    outcome = RerunOutcome(cause, ranks, _WHY[cause])
    kind = VerdictKind.CORRUPTION
    return verdict_on(unit, loaded, kind, outcome, step=_NO_STEP, operation="", what=outcome.why, evidence=evidence)
