"""The effects of time on an attempt: reboots, wall time, lost and recovered hosts, leases, repeated wake-ups."""

from dataclasses import replace
from typing import Final

from muster.domain.ids import NodeId
from muster.domain.job.spec import NodeLossRule
from muster.domain.lifecycle.attempt_messages import Command, Outcome, Tick, Wake
from muster.domain.lifecycle.attempt_moves import (
    MAY_RUN,
    at_fault,
    ending,
    go_when_all_are_ready,
    moved,
    stop,
    with_part,
)
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, StopRequest, Timers, Verdict
from muster.domain.states import AttemptState, Cause, HostPartState, StopReason

_S: Final = AttemptState
_H: Final = HostPartState
STARTING: Final = frozenset({_S.PLACED, _S.CLAIMING})
_NOT_YET_CLEAN: Final = frozenset({*MAY_RUN, _H.EXITED})


def time_passes(life: AttemptLifecycle, tick: Tick, now_ms: int, timers: Timers) -> Outcome:
    if life.state is _S.ENDED:
        return _clean_rebooted(life, tick), ()
    life, reboot = _seen_reboots(life, tick)
    if reboot is not None:
        return ending(life, reboot)
    if life.wall_deadline_ms is not None and now_ms >= life.wall_deadline_ms and life.stop is None:
        return stop(life, StopRequest(StopReason.WALLTIME, now_ms + life.stop_grace_ms))
    life, commands = _contact(life, tick, now_ms, timers)
    if life.state is _S.ENDED:
        return life, commands
    life, commands = _wake_unclaimed(life, commands, now_ms, timers)
    life, commands = _give_up_unready(life, commands, tick, now_ms, timers)
    return go_when_all_are_ready(life, commands, now_ms)


def _clean_rebooted(life: AttemptLifecycle, tick: Tick) -> AttemptLifecycle:
    """Mark the parts of rebooted hosts as clean: a reboot proves that nothing of the attempt runs on."""
    for part in life.hosts:
        if part.state is not _H.CLEAN and _has_rebooted(part, tick):
            life = with_part(life, replace(part, state=_H.CLEAN))
    return life


def _seen_reboots(life: AttemptLifecycle, tick: Tick) -> tuple[AttemptLifecycle, Verdict | None]:
    verdict = None
    for part in life.hosts:
        if part.state in _NOT_YET_CLEAN and _has_rebooted(part, tick):
            if part.state is not _H.EXITED:
                verdict = Verdict(Cause.NODE_LOST, f"{part.node_id} has rebooted: boot {part.boot_id} has ended")
            life = with_part(life, replace(part, state=_H.CLEAN))
    return life, verdict


def _has_rebooted(part: HostPart, tick: Tick) -> bool:
    hearing = tick.hearings.get(part.node_id)
    return hearing is not None and part.boot_id is not None and hearing.boot_id != part.boot_id


def _contact(life: AttemptLifecycle, tick: Tick, now_ms: int, timers: Timers) -> Outcome:
    """LOST and back, and the end of leases. No lease ends soon after the control plane's own start (R15)."""
    lost: list[NodeId] = []
    may_expire = now_ms - tick.server_started_ms >= timers.no_expiry_after_start_ms
    for part in life.hosts:
        if part.state not in MAY_RUN or part.is_past_lease:
            continue
        hearing = tick.hearings.get(part.node_id)
        heard_ms = hearing.received_ms if hearing else 0
        if part.omitted_ms is not None:
            heard_ms = min(heard_ms, part.omitted_ms)
        silence_ms = now_ms - max(part.claimed_ms, heard_ms)
        if silence_ms >= timers.server_lease_ms and may_expire:
            life = with_part(life, replace(part, is_past_lease=True))
        if silence_ms >= timers.lost_ms:
            lost.append(part.node_id)
    if not lost:
        if life.state is _S.LOST and not any(part.is_past_lease for part in life.hosts):
            is_stopping = life.stop is not None or life.ending is not None
            resumed = _S.STOPPING if is_stopping else life.resume_state or _S.RUNNING
            life = replace(moved(life, resumed), resume_state=None)
        return life, ()
    if life.state is not _S.LOST:
        life = replace(moved(life, _S.LOST), resume_state=life.state)
    return _lost(life, lost) if may_expire else (life, ())


def _lost(life: AttemptLifecycle, lost: list[NodeId]) -> Outcome:
    expired = [part.node_id for part in life.hosts if part.is_past_lease]
    if expired:
        return ending(life, Verdict(Cause.NODE_LOST, f"the lease of {', '.join(expired)} ended without contact"))
    if life.on_node_loss is NodeLossRule.FENCED:
        life = replace(
            life,
            hosts=tuple(replace(part, is_past_lease=True) if part.node_id in lost else part for part in life.hosts),
        )
        return ending(life, Verdict(Cause.NODE_LOST, f"{', '.join(lost)} is lost; the job relaunches fenced"))
    return life, ()


def _wake_unclaimed(life: AttemptLifecycle, commands: tuple[Command, ...], now_ms: int, timers: Timers) -> Outcome:
    if life.state not in STARTING:
        return life, commands
    waiting = [part for part in life.hosts if part.state is _H.UNCLAIMED]
    if waiting and now_ms - life.placed_ms >= timers.place_again_ms:
        names = ", ".join(part.node_id for part in waiting)
        proof = f"unclaimed by {names} for {timers.place_again_ms // 1000} s"
        return ending(at_fault(life, waiting), Verdict(Cause.LAUNCH_FAILED, proof))
    for part in waiting:
        if now_ms - max(life.placed_ms, part.woken_ms) >= timers.wake_again_ms:
            life = with_part(life, replace(part, woken_ms=now_ms))
            commands = (*commands, Wake(part.node_id))
    return life, commands


def _give_up_unready(
    life: AttemptLifecycle, commands: tuple[Command, ...], tick: Tick, now_ms: int, timers: Timers
) -> Outcome:
    """End an attempt with a host that neither gets ready nor reports why. A silent host could not report."""
    if life.state is not _S.CLAIMING or life.go_ms is not None:
        return life, commands
    late = [
        part
        for part in life.hosts
        if part.state is _H.CLAIMED
        and part.awaits_go
        and part.ready_ms is None
        and now_ms - max(part.claimed_ms, tick.server_started_ms) >= timers.ready_within_ms
    ]
    if not late:
        return life, commands
    names = ", ".join(part.node_id for part in late)
    proof = f"{names} was not ready within {timers.ready_within_ms // 1000} s of its claim"
    life, more = ending(at_fault(life, late), Verdict(Cause.PREFLIGHT_FAILED, proof))
    return life, (*commands, *more)
