"""The server's machine of one attempt: the hosts that claimed and run it, its end, and when its GPUs are clean.

An attempt has ENDED only when no host can still be running it: each part was never claimed, has exited, is clean, or
is past its lease (the launcher stops its own programs earlier than the server's lease ends). Under the ``fenced``
rule a host that is lost no longer holds up the end, because what it still commits carries an old fence.
"""

from dataclasses import replace
from typing import Final

from muster.domain.exit.causes import STOP_CAUSES
from muster.domain.ids import NodeId
from muster.domain.lifecycle.attempt_messages import (
    ClaimRequested,
    Cleaned,
    Command,
    Ended,
    Event,
    Exited,
    Grant,
    Listed,
    Outcome,
    PairwiseDone,
    Ready,
    Refuse,
    Started,
    StopRequested,
    Tick,
    Wake,
)
from muster.domain.lifecycle.attempt_moves import (
    MAY_RUN,
    are_all_ready,
    at_fault,
    ending,
    go_when_all_are_ready,
    moved,
    part_of,
    settled,
    stop,
    with_part,
)
from muster.domain.lifecycle.attempt_time import STARTING, time_passes
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, StopRequest, Timers, Verdict
from muster.domain.states import AttemptState, Cause, HostPartState

__all__ = [
    "ClaimRequested",
    "Cleaned",
    "Command",
    "Ended",
    "Event",
    "Exited",
    "Grant",
    "Listed",
    "Outcome",
    "PairwiseDone",
    "Ready",
    "Refuse",
    "Started",
    "StopRequested",
    "Tick",
    "Wake",
    "are_all_ready",
    "is_unclaimed_on",
    "may_go",
    "part_of",
    "step",
    "stop_order",
]

_S: Final = AttemptState
_H: Final = HostPartState
_ENDED_PHASES: Final = frozenset({_H.EXITED, _H.CLEAN})
_OF_ONE_HOST: Final = frozenset({Cause.PREFLIGHT_FAILED, Cause.GPU_FAULT})
"""The others of the gang are not to be avoided for it."""


def step(life: AttemptLifecycle, event: Event, now_ms: int, timers: Timers) -> Outcome:
    """One event on one attempt. Unfitting events (stale fence, other boot, repeated) change nothing."""
    if isinstance(event, Tick):
        return time_passes(life, event, now_ms, timers)
    if isinstance(event, ClaimRequested):
        return _claim(life, event, now_ms)
    if isinstance(event, StopRequested | PairwiseDone):
        return _stop_or_go(life, event, now_ms)
    part = part_of(life, event.node_id)
    if part is None or part.boot_id != event.boot_id:
        return life, ()
    if isinstance(event, Listed):
        return _listed(life, part, is_listed=event.is_listed, now_ms=now_ms), ()
    if event.fence != life.fence:
        return life, ()
    if isinstance(event, Ready):
        return _ready(life, part, now_ms)
    if isinstance(event, Started):
        return _started(life, part, now_ms)
    if isinstance(event, Exited):
        return _exited(life, part, event.verdict)
    return _cleaned(life, part)


def _stop_or_go(life: AttemptLifecycle, event: StopRequested | PairwiseDone, now_ms: int) -> Outcome:
    """Apply an event that concerns all hosts of the attempt at once."""
    if isinstance(event, StopRequested):
        return stop(life, StopRequest(event.reason, event.deadline_ms))
    return _met(life, event, now_ms)


def is_unclaimed_on(life: AttemptLifecycle, node_id: NodeId) -> bool:
    """Return whether a heartbeat of ``node_id`` is answered with this attempt as unclaimed."""
    part = part_of(life, node_id)
    return part is not None and part.state is _H.UNCLAIMED and life.state in STARTING and life.ending is None


def may_go(life: AttemptLifecycle, node_id: NodeId) -> bool:
    """Return whether ``node_id``, which waits while all hosts are ready, gets the go for its program."""
    part = part_of(life, node_id)
    if part is None or not part.awaits_go or part.state is not _H.CLAIMED:
        return False
    return life.go_ms is not None and life.ending is None and life.stop is None


def stop_order(life: AttemptLifecycle, node_id: NodeId, now_ms: int) -> tuple[str, int] | None:
    """Return (reason, milliseconds until SIGKILL) for a host that holds this attempt, or None while it may run on."""
    if life.state is _S.ENDED or part_of(life, node_id) is None:
        return "stale", 0
    if life.stop is not None:
        return life.stop.reason, max(0, life.stop.deadline_ms - now_ms)
    if life.ending is not None and life.ending.cause is not Cause.SUCCEEDED:
        return life.ending.cause, 0
    return None


def _claim(life: AttemptLifecycle, event: ClaimRequested, now_ms: int) -> Outcome:
    part = part_of(life, event.node_id)
    if part is None or event.fence != life.fence:
        return life, (Refuse(event.node_id, "this host holds no part of that attempt under that fence"),)
    if life.state is _S.ENDED or life.ending is not None or life.stop is not None:
        return life, (Refuse(event.node_id, "the attempt has ended or is being stopped"),)
    if part.state in MAY_RUN and part.boot_id == event.boot_id and part.nonce == event.nonce:
        # The host counts a new lease from this claim: so must the server.
        return with_part(life, replace(part, claimed_ms=max(now_ms, part.claimed_ms))), (Grant(event.node_id),)
    if part.state is not _H.UNCLAIMED:
        return life, (Refuse(event.node_id, "this part was claimed before"),)
    if event.lacks:
        return _refuse_older(life, part, event.lacks)
    claimed = replace(part, state=_H.CLAIMED, boot_id=event.boot_id, nonce=event.nonce, claimed_ms=now_ms)
    has_to_wait = event.is_checked or len(life.hosts) > 1  # a host alone waits for no other
    life = with_part(life, replace(claimed, awaits_go=event.can_wait and has_to_wait))
    if life.state is _S.PLACED:
        life = moved(life, _S.CLAIMING)
    return go_when_all_are_ready(life, (Grant(event.node_id),), now_ms)


def _refuse_older(life: AttemptLifecycle, part: HostPart, lacks: tuple[str, ...]) -> Outcome:
    """Refuse a host whose worker is too old for the job: it would run the program without what the job requires."""
    why = f"{part.node_id} does not know {', '.join(lacks)}: its host worker is older than what the job asks for"
    life, commands = ending(at_fault(life, [part]), Verdict(Cause.PREFLIGHT_FAILED, why))
    return life, (*commands, Refuse(part.node_id, why))


def _ready(life: AttemptLifecycle, part: HostPart, now_ms: int) -> Outcome:
    if part.state is not _H.CLAIMED or not part.awaits_go or part.ready_ms is not None:
        return life, ()
    return go_when_all_are_ready(with_part(life, replace(part, ready_ms=now_ms)), (), now_ms)


def _met(life: AttemptLifecycle, event: PairwiseDone, now_ms: int) -> Outcome:
    """Apply the result of the pairwise check once; a result after the go or the end changes nothing."""
    if not life.awaits_pairwise or not are_all_ready(life) or life.ending is not None or life.stop is not None:
        return life, ()
    if event.bad:
        bad = [part for part in life.hosts if part.node_id in event.bad]
        return ending(at_fault(life, bad), Verdict(Cause.PREFLIGHT_FAILED, event.why))
    return go_when_all_are_ready(replace(life, awaits_pairwise=False), (), now_ms)


def _started(life: AttemptLifecycle, part: HostPart, now_ms: int) -> Outcome:
    if part.state is not _H.CLAIMED:
        return life, ()
    life = with_part(life, replace(part, state=_H.STARTED))
    awaited = life.resume_state if life.state is _S.LOST else life.state
    if awaited is _S.CLAIMING and all(host.state not in {_H.UNCLAIMED, _H.CLAIMED} for host in life.hosts):
        deadline = None if life.wall_time_ms is None else now_ms + life.wall_time_ms
        life = replace(life, wall_deadline_ms=deadline)
        # The last start may come while another host is lost: then it is RUNNING once that one is in contact again.
        return (replace(life, resume_state=_S.RUNNING) if life.state is _S.LOST else moved(life, _S.RUNNING)), ()
    return life, ()


def _exited(life: AttemptLifecycle, part: HostPart, verdict: Verdict) -> Outcome:
    if part.state not in MAY_RUN:
        return life, ()
    life = with_part(life, replace(part, state=_H.EXITED))
    if life.state is _S.ENDED:
        return life, ()
    if verdict.cause in _OF_ONE_HOST:
        life = at_fault(life, [host for host in life.hosts if host.node_id == (verdict.node_id or part.node_id)])
    everyone_done = all(host.state in _ENDED_PHASES for host in life.hosts)
    if verdict.cause is not Cause.SUCCEEDED or everyone_done:
        return ending(life, verdict)
    if life.ending is not None:
        return settled(life, ())
    if life.stop is not None and not any(host.state in MAY_RUN for host in life.hosts):
        # The others were never claimed, and are not to be any more: no other host will report an end.
        why = "stopped: some hosts had ended well, and the others had not claimed it yet"
        return ending(life, Verdict(STOP_CAUSES[life.stop.reason], why))
    return life, ()


def _cleaned(life: AttemptLifecycle, part: HostPart) -> Outcome:
    if part.state is _H.CLEAN:
        return life, ()
    was_over = part.state in _ENDED_PHASES
    life = with_part(life, replace(part, state=_H.CLEAN))
    if life.state is _S.ENDED or was_over:
        return life, ()
    return ending(life, Verdict(Cause.LAUNCH_FAILED, f"{part.node_id} is clean without ever having reported an exit"))


def _listed(life: AttemptLifecycle, part: HostPart, *, is_listed: bool, now_ms: int) -> AttemptLifecycle:
    """Note whether the host still lists the attempt.

    A host that lost its record may still run the program: its supervisor fences itself when the lease ends.
    """
    if part.state not in MAY_RUN or is_listed == (part.omitted_ms is None):
        return life
    return with_part(life, replace(part, omitted_ms=None if is_listed else now_ms))
