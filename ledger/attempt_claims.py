"""Facts of one attempt become claims on the time of each of its GPUs: made once, for all hosts of the attempt.

Steps come first: a step that an earlier attempt of the job had trained is replayed, the first time it is productive.
Other reports of the program count where no step does. All other time is the start, or idle.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

from ledger.accounts import Account
from ledger.claims import Claim, settle
from ledger.facts import Attempt, EarlierAttempt, Period, Rollback, Slow
from ledger.own_time import OwnTime, Run
from ledger.periods import FOREVER, Pair, end_of, joined, without
from muster.domain.states import Cause

LAUNCHES: Final = "launch"
"""Cause of STARTING: from the claim of the first host until the programs of all hosts run."""
FIRST_STEP: Final = "first_step"
"""Cause of STARTING: from then on until the first step."""
UNCLAIMED: Final = "claim"
"""Cause of STARTING: until a host has claimed the attempt."""
UNREPORTED: Final = "unreported"
"""Cause of PRODUCTIVE: a program that reports no steps runs."""
NO_STEP: Final = "no_step"
"""Cause of IDLE: neither a step nor anything else is reported."""
STOPS: Final = "stopping"
"""Cause of IDLE: since the attempt was asked to stop."""


@dataclass(frozen=True, slots=True)
class AttemptClaims:
    """``firm``: what is reported, on all hosts. ``while_in_contact``: what is assumed of a host that has contact."""

    firm: tuple[Claim, ...]
    while_in_contact: tuple[Claim, ...]


def claims_of(attempt: Attempt) -> AttemptClaims:
    own = OwnTime(attempt)
    runs = own.runs(attempt.steps)
    steps = joined((run.start_ms, run.end_ms) for run in runs)
    reads = joined(_apart_from(steps, own, attempt.restores))
    first_ms = _first_step_ms(attempt, own, runs)
    firm = (
        *_of_steps(attempt, own, runs, first_ms),
        *(Claim(Account.RESTORING, *read, attempt.attempt_id) for read in reads),
        *(Claim(Account.SAVING, *save, attempt.attempt_id) for save in _apart_from(steps, own, attempt.saves)),
        *_lost(attempt, own, runs, first_ms),
    )
    return AttemptClaims(firm, (*_starting(attempt, first_ms, reads), *_otherwise(attempt)))


def accounts_of(attempt: Attempt, start_ms: int, end_ms: int) -> dict[Account, int]:
    """Return the milliseconds of each account of one GPU of the attempt within a time, on a host with contact."""
    start_ms = max(start_ms, attempt.placed_ms)
    end_ms = min(end_ms, end_of(attempt.ended_ms))
    if start_ms >= end_ms:
        return {}
    own = claims_of(attempt)
    found: dict[Account, int] = {}
    for one in settle((*own.firm, *own.while_in_contact), start_ms, end_ms):
        found[one.account] = found.get(one.account, 0) + one.num_ms
    return found


def _first_step_ms(attempt: Attempt, own: OwnTime, runs: Sequence[Run]) -> int | None:
    """Return when the first step began; None: none has. Of a program without reports: since when it runs."""
    if not attempt.has_reports:
        return None if attempt.running_ms is None else max(attempt.running_ms, attempt.placed_ms)
    if attempt.first_step_ms is not None:
        return own.reported(attempt.first_step_ms, attempt.first_step_ms)[0]
    return runs[0].start_ms if runs else None


def _apart_from(steps: Sequence[Pair], own: OwnTime, periods: Sequence[Period]) -> Iterator[Pair]:
    for one in periods:
        yield from without(*own.reported(one.start_ms, one.end_ms), steps)


def _of_steps(attempt: Attempt, own: OwnTime, runs: Sequence[Run], first_ms: int | None) -> Iterator[Claim]:
    trained_before = _trained_before(attempt.earlier, own.start_ms if first_ms is None else first_ms)
    slow = [(one, *own.within(one.start_ms, end_of(one.end_ms)), _usual_ms(one, runs)) for one in attempt.slow]
    for run in runs:
        saves_ms = run.end_ms - run.save_ms
        yield Claim(Account.PRODUCTIVE, run.start_ms, run.end_ms, attempt.attempt_id)
        if run.save_ms:
            yield Claim(Account.SAVING, saves_ms, run.end_ms, attempt.attempt_id)
        yield from _replayed(attempt.attempt_id, run, trained_before)
        for verdict, from_ms, until_ms, usual_ms in slow:
            if usual_ms is not None and from_ms < saves_ms and until_ms > run.start_ms:
                yield from _slowed(attempt.attempt_id, run, verdict, (from_ms, until_ms), usual_ms)


class _Trained(NamedTuple):
    """Steps after ``after`` up to ``upto``, which ``by`` trained, and which are trained again ``until_ms`` at most."""

    after: int
    upto: int
    by: EarlierAttempt
    until_ms: int


def _trained_before(earlier: Sequence[EarlierAttempt], first_ms: int) -> list[_Trained]:
    """Return the steps with the latest attempt that trained them. ``first_ms``: when the first one begins again."""
    found: list[_Trained] = []
    trained, until_ms = -1, first_ms
    for one in sorted(set(earlier), key=_newest_first):
        if one.last_step > trained:
            until_ms = FOREVER if one.assigned_ms is None else min(until_ms + max(one.assigned_ms, 0), FOREVER)
            found.append(_Trained(trained, one.last_step, one, until_ms))
            trained = one.last_step
    return found


def _newest_first(one: EarlierAttempt) -> tuple[int, int, str, tuple[str, ...], int]:
    return -one.number, -one.last_step, one.cause, one.evidence, end_of(one.assigned_ms)


def _replayed(attempt_id: str, run: Run, trained: Sequence[_Trained]) -> Iterator[Claim]:
    for after, upto, before, until_ms in trained:
        first, last = max(run.first, after + 1), min(run.last, upto)
        if first > last:
            continue
        start_ms = run.start_ms + run.num_ms * (first - run.first) // run.num_steps
        end_ms = min(run.start_ms + run.num_ms * (last + 1 - run.first) // run.num_steps, until_ms)
        if start_ms >= end_ms:
            continue
        account = Account.RECLAIM_LOST if before.cause is Cause.RECLAIMED else Account.REPLAYED
        yield Claim(account, start_ms, end_ms, attempt_id, before.cause.value, before.evidence)


def _usual_ms(verdict: Slow, runs: Sequence[Run]) -> float | None:
    """Return the usual time of a step before the verdict; None if it is not known."""
    if verdict.usual_step_ms is not None:
        return max(verdict.usual_step_ms, 0)
    before = [(run.num_ms - run.save_ms) / run.num_steps for run in runs if run.end_ms <= verdict.start_ms]
    return median(before) if before else None


def _slowed(attempt_id: str, run: Run, verdict: Slow, stands: Pair, usual_ms: float) -> Iterator[Claim]:
    """Claim the part of the steps' time beyond the usual, of the time in which the verdict stands."""
    trained_ms = run.num_ms - run.save_ms
    start_ms, end_ms = max(run.start_ms, stands[0]), min(run.start_ms + trained_ms, stands[1])
    beyond_ms = trained_ms - int(usual_ms * run.num_steps)
    if beyond_ms > 0 and end_ms > start_ms:
        slowed_ms = beyond_ms * (end_ms - start_ms) // trained_ms
        yield Claim(Account.SLOWED, end_ms - slowed_ms, end_ms, attempt_id, verdict.cause, (verdict.verdict_id,))


def _lost(attempt: Attempt, own: OwnTime, runs: Sequence[Run], first_ms: int | None) -> Iterator[Claim]:
    for hang in attempt.hangs:
        yield Claim(
            Account.LOST,
            *own.within(hang.start_ms, end_of(hang.end_ms)),
            attempt.attempt_id,
            hang.cause,
            hang.evidence,
        )
    for one in attempt.rollbacks:
        at_ms = own.within(one.at_ms, one.at_ms)[0]
        since_ms = min(own.within(_done_ms(one, runs, first_ms), FOREVER)[0], at_ms)
        yield Claim(Account.LOST, since_ms, at_ms, attempt.attempt_id, one.cause, one.evidence)


def _done_ms(rollback: Rollback, runs: Sequence[Run], first_ms: int | None) -> int:
    """Return when the step had been done to which the attempt returned."""
    if rollback.since_ms is not None:
        return rollback.since_ms
    upto = ((run, min(run.last, rollback.to_step) + 1 - run.first) for run in runs)
    done_ms = (run.start_ms + run.num_ms * num_steps // run.num_steps for run, num_steps in upto if num_steps > 0)
    before_ms = [moment_ms for moment_ms in done_ms if moment_ms <= rollback.at_ms]
    return max(before_ms, default=rollback.at_ms if first_ms is None else first_ms)


def _starting(attempt: Attempt, first_ms: int | None, reads: Sequence[Pair]) -> Iterator[Claim]:
    """Claim the time from the placement to the first step, except reads of a checkpoint. Evidence: of why it starts."""
    until_ms = min(end_of(attempt.ended_ms), end_of(attempt.stopping_ms)) if first_ms is None else first_ms
    until_ms = max(until_ms, attempt.placed_ms)
    claimed_ms = min(max(attempt.placed_ms, end_of(attempt.claimed_ms)), until_ms)
    running_ms = min(max(claimed_ms, end_of(attempt.running_ms)), until_ms)
    evidence = max(attempt.earlier, key=lambda one: one.number).evidence if attempt.earlier else ()
    phases = (
        (UNCLAIMED, attempt.placed_ms, claimed_ms),
        (LAUNCHES, claimed_ms, running_ms),
        (FIRST_STEP, running_ms, until_ms),
    )
    for cause, start_ms, end_ms in phases:
        for part in without(start_ms, end_ms, reads):
            yield Claim(Account.STARTING, *part, attempt.attempt_id, cause, evidence)


def _otherwise(attempt: Attempt) -> Iterator[Claim]:
    """Claim all other time: idle, except where programs report nothing at all."""
    if not attempt.has_reports and attempt.running_ms is not None:
        start_ms = max(attempt.running_ms, attempt.placed_ms)
        yield Claim(Account.PRODUCTIVE, start_ms, FOREVER, attempt.attempt_id, UNREPORTED)
    stops_ms = max(attempt.placed_ms, end_of(attempt.stopping_ms))
    yield Claim(Account.IDLE, 0, stops_ms, attempt.attempt_id, NO_STEP)
    yield Claim(Account.IDLE, stops_ms, FOREVER, attempt.attempt_id, STOPS)
