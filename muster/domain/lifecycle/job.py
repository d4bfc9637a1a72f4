"""The job's machine: placed, attempt ended, cancelled, held, due again."""

from dataclasses import dataclass, replace
from typing import Final

from muster.domain.exit.causes import ADVICE, CAUSE_RULES, ENDS_THE_SECOND_TIME, HOLDS_THE_SECOND_TIME, Budget, NextStep
from muster.domain.lifecycle.model import JobLifecycle, Timers, Verdict
from muster.domain.states import JOB_EDGES, Cause, JobState, require_edge


@dataclass(frozen=True, slots=True)
class Placed:
    """An attempt was committed for the job."""


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt of the job has ended.

    ``suspicion``: why the program is suspected rather than the GPUs it ran on, if it is. ``has_progressed``: the
    attempt left a newer checkpoint than the one it began from, so that an occasional fault does not use up the restarts
    of a long training; one that recurs at the same place does. ``is_final``: the program itself states that it would
    end in the same way again. ``has_lacked``: a part of its start is missing wherever it may run, until a person
    supplies it. ``recurs``: the attempt before it ended by the same cause, and it has not progressed since. ``hold``:
    why the job is held instead of tried again, by its own rule for such an end.
    """

    verdict: Verdict
    suspicion: str | None = None
    has_progressed: bool = False
    is_final: bool = False
    has_lacked: bool = False
    recurs: bool = False
    hold: str | None = None


@dataclass(frozen=True, slots=True)
class CancelRequested:
    """The tenant or an operator has requested a cancel. Before placement it takes effect at once."""


@dataclass(frozen=True, slots=True)
class HoldRequested:
    why: str


@dataclass(frozen=True, slots=True)
class ReleaseRequested:
    """Out of HELD, back into the queue."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes."""


@dataclass(frozen=True, slots=True)
class Excused:
    """The end of the last attempt was not the job's own fault, so the restart that it used up is returned.

    ``why``: the proof, which came later than the end.
    """

    why: str


Event = Placed | AttemptEnded | CancelRequested | HoldRequested | ReleaseRequested | Tick | Excused


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Ask the live attempt to stop, because the job is cancelled."""


_LAUNCHES: Final = frozenset({Cause.LAUNCH_FAILED, Cause.PREFLIGHT_FAILED})
_FREE_OF_CHARGE: Final = _LAUNCHES | {Cause.GPU_FAULT, Cause.NCCL_TIMEOUT}
"""Causes that cost no restart and yet may come again without end: in a row they are for a person."""
_UNTIL_SUPPLIED: Final = "held, because another attempt would end the same way until this is there"
Outcome = tuple[JobLifecycle, tuple[StopAttempt, ...]]
_J = JobState


def step(life: JobLifecycle, event: Event, now_ms: int, timers: Timers) -> Outcome:
    """One event on one job. Events that do not fit its state change nothing."""
    if isinstance(event, Tick):
        if life.state is _J.RECOVERING and now_ms >= (life.next_try_ms or 0):
            return replace(_moved(life, _J.QUEUED, "waiting to be placed again"), next_try_ms=None), ()
        return life, ()
    if isinstance(event, Placed):
        return _moved(life, _J.ACTIVE, "placed"), ()
    if isinstance(event, AttemptEnded):
        return _attempt_ended(life, event, now_ms, timers), ()
    if isinstance(event, CancelRequested):
        return _cancel(life)
    if isinstance(event, Excused):
        return _excused(life, event.why), ()
    if isinstance(event, HoldRequested):
        return (_on_hold(life, event.why) if life.state in {_J.QUEUED, _J.RECOVERING} else life), ()
    return (_moved(life, _J.QUEUED, "released from hold") if life.state is _J.HELD else life), ()


def _cancel(life: JobLifecycle) -> Outcome:
    if life.state is _J.ACTIVE and not life.is_cancel_requested:
        waiting = "cancel asked; waiting for its programs to stop"
        return replace(life, is_cancel_requested=True, reason=waiting), (StopAttempt(),)
    if life.state in {_J.QUEUED, _J.HELD, _J.RECOVERING}:
        return replace(_moved(life, _J.CANCELLED, "cancelled"), is_cancel_requested=True, next_try_ms=None), ()
    return life, ()


def _excused(life: JobLifecycle, why: str) -> JobLifecycle:
    if life.state is not _J.RECOVERING or life.restarts_used < 1:
        return life
    return replace(life, restarts_used=life.restarts_used - 1, reason=f"{Cause.GPU_FAULT}: {why}")


def _on_hold(life: JobLifecycle, why: str) -> JobLifecycle:
    return replace(_moved(life, _J.HELD, why), next_try_ms=None)


def _attempt_ended(life: JobLifecycle, ended: AttemptEnded, now_ms: int, timers: Timers) -> JobLifecycle:
    if life.state is not _J.ACTIVE:
        return life
    verdict = ended.verdict
    rule = CAUSE_RULES[verdict.cause]
    if rule.next_step is NextStep.SUCCEED:
        return _moved(life, _J.SUCCEEDED, verdict.proof)
    if ended.has_progressed:
        life = replace(life, restarts_used=0, launch_failures=0)
    if life.is_cancel_requested or rule.next_step is NextStep.CANCEL:
        return _moved(life, _J.CANCELLED, "cancelled")
    if verdict.cause is Cause.GPU_OOM and life.oom_doublings < life.max_oom_doublings and ended.suspicion is None:
        return _in_smaller_pieces(life, verdict, now_ms)
    is_used_up = rule.budget is Budget.JOB and life.restarts_used >= life.max_restarts
    is_final = ended.is_final or (ended.recurs and verdict.cause in ENDS_THE_SECOND_TIME)
    if is_final or rule.next_step is NextStep.FAIL or is_used_up:
        return _moved(life, _J.FAILED, _with_advice(verdict))
    if rule.budget is Budget.JOB and not ended.has_lacked:
        life = replace(life, restarts_used=life.restarts_used + 1)
    if (why := _why_on_hold(ended)) is not None:
        return replace(_on_hold(life, why), launch_failures=0)
    failures = life.launch_failures + 1 if verdict.cause in _FREE_OF_CHARGE else 0
    if failures >= timers.launch_failures_before_hold:
        what = "launches" if verdict.cause in _LAUNCHES else "attempts"
        return replace(
            _moved(life, _J.HELD, f"{failures} {what} failed in a row; the last: {verdict.proof}"), launch_failures=0
        )
    pause_ms = _pause_ms(life, failures, timers) if rule.next_step is NextStep.RETRY_AFTER_PAUSE else 0
    return replace(
        _moved(life, _J.RECOVERING, f"{verdict.cause}: {verdict.proof}"),
        launch_failures=failures,
        next_try_ms=now_ms + pause_ms,
    )


def _why_on_hold(ended: AttemptEnded) -> str | None:
    """Return why no further attempt follows until a person has acted."""
    if ended.suspicion is None and ended.has_lacked:
        return f"{ended.verdict.cause}: {ended.verdict.proof}; {_UNTIL_SUPPLIED}"
    has_reason = ended.suspicion is not None or ended.hold is not None
    if not has_reason and ended.recurs and ended.verdict.cause in HOLDS_THE_SECOND_TIME:
        return f"{_with_advice(ended.verdict)}; held, because it is the second such end without a newer checkpoint"
    if not has_reason and CAUSE_RULES[ended.verdict.cause].next_step is NextStep.HOLD:
        return _with_advice(ended.verdict)
    return ended.suspicion or ended.hold


def _in_smaller_pieces(life: JobLifecycle, verdict: Verdict, now_ms: int) -> JobLifecycle:
    """Restart the job at once and without charge: the next attempt is another program, since it needs less memory."""
    doublings = life.oom_doublings + 1
    bound = f"{doublings} of {life.max_oom_doublings} doublings"
    what = f"continues with {1 << doublings} times as many pieces a batch ({bound})"
    moved = _moved(life, _J.RECOVERING, f"{verdict.cause}: {verdict.proof}; {what}")
    return replace(moved, oom_doublings=doublings, launch_failures=0, next_try_ms=now_ms)


def _with_advice(verdict: Verdict) -> str:
    words = f"{verdict.cause}: {verdict.proof}"
    advice = ADVICE.get(verdict.cause)
    return words if advice is None else f"{words}; {advice}"


def _pause_ms(life: JobLifecycle, launch_failures: int, timers: Timers) -> int:
    """Doubles with each failure of the same kind, up to the policy's cap."""
    tries = max(life.restarts_used, launch_failures, 1)
    return int(min(timers.retry_backoff_max_ms, timers.retry_backoff_ms * 2 ** min(tries - 1, 16)))


def _moved(life: JobLifecycle, state: JobState, reason: str) -> JobLifecycle:
    require_edge(JOB_EDGES, life.state, state)
    return replace(life, state=state, reason=reason)
