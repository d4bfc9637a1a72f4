"""The server's machine of one attempt: who claimed it, who runs it, when it has ended, when its GPUs are clean.

An attempt has ENDED only when no host can still be running it: each part was never claimed, has exited, is clean, or
is past its lease (the launcher stops its own programs earlier than the server's lease ends). Under the ``fenced``
rule a host that is lost no longer holds up the end, because what it still commits carries an old fence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from muster.domain.causes import STOP_CAUSES
from muster.domain.ids import Fence, NodeId
from muster.domain.job_spec import NodeLossRule
from muster.domain.lifecycle.contact import Hearing
from muster.domain.lifecycle.model import AttemptLife, HostPart, StopRequest, Timers, Verdict
from muster.domain.states import (
    ATTEMPT_EDGES,
    HOST_PART_EDGES,
    STOP_URGENCY,
    AttemptState,
    Cause,
    HostPartState,
    StopReason,
    require_edge,
)


@dataclass(frozen=True, slots=True)
class ClaimAsked:
    node_id: NodeId
    fence: Fence
    boot_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Started:
    node_id: NodeId
    fence: Fence
    boot_id: str


@dataclass(frozen=True, slots=True)
class Exited:
    """``verdict`` is classified from the host's exit record with the stop request in hand."""

    node_id: NodeId
    fence: Fence
    boot_id: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Cleaned:
    node_id: NodeId
    fence: Fence
    boot_id: str


@dataclass(frozen=True, slots=True)
class Listed:
    """A heartbeat of the claiming boot listed the attempt, or did not: then its lease is no longer renewed."""

    node_id: NodeId
    boot_id: str
    is_listed: bool


@dataclass(frozen=True, slots=True)
class StopAsked:
    reason: StopReason
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. ``hearings``: of each host in this attempt; ``server_started_ms``: of the control plane."""

    hearings: Mapping[NodeId, Hearing]
    server_started_ms: int


Event = ClaimAsked | Started | Exited | Cleaned | Listed | StopAsked | Tick


@dataclass(frozen=True, slots=True)
class Grant:
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Refuse:
    node_id: NodeId
    why: str


@dataclass(frozen=True, slots=True)
class Ring:
    """Wake the host over the broker; its next heartbeat brings the order or the stop in any case."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Ended:
    verdict: Verdict


Command = Grant | Refuse | Ring | Ended
Outcome = tuple[AttemptLife, tuple[Command, ...]]

_S: Final = AttemptState
_H: Final = HostPartState
_STARTING: Final = frozenset({_S.PLACED, _S.CLAIMING})
_MAY_RUN: Final = frozenset({_H.CLAIMED, _H.STARTED})
_NOT_YET_CLEAN: Final = frozenset({*_MAY_RUN, _H.EXITED})
_OVER: Final = frozenset({_H.EXITED, _H.CLEAN})


def step(life: AttemptLife, event: Event, now_ms: int, timers: Timers) -> Outcome:
    """One event on one attempt. Unfitting events (stale fence, other boot, repeated) change nothing."""
    if isinstance(event, Tick):
        return _tick(life, event, now_ms, timers)
    if isinstance(event, ClaimAsked):
        return _claim(life, event, now_ms)
    if isinstance(event, StopAsked):
        return _stop(life, StopRequest(event.reason, event.deadline_ms))
    part = part_of(life, event.node_id)
    if part is None or part.boot_id != event.boot_id:
        return life, ()
    if isinstance(event, Listed):
        return _listed(life, part, is_listed=event.is_listed, now_ms=now_ms), ()
    if event.fence != life.fence:
        return life, ()
    if isinstance(event, Started):
        return _started(life, part, now_ms)
    if isinstance(event, Exited):
        return _exited(life, part, event.verdict)
    return _cleaned(life, part)


def part_of(life: AttemptLife, node_id: NodeId) -> HostPart | None:
    for part in life.hosts:
        if part.node_id == node_id:
            return part
    return None


def is_unclaimed_on(life: AttemptLife, node_id: NodeId) -> bool:
    """Whether a heartbeat of ``node_id`` is told to claim this attempt."""
    part = part_of(life, node_id)
    return part is not None and part.state is _H.UNCLAIMED and life.state in _STARTING and life.ending is None


def stop_order(life: AttemptLife, node_id: NodeId, now_ms: int) -> tuple[str, int] | None:
    """(reason, milliseconds until SIGKILL) for a host that holds this attempt, or None while it may run on."""
    if life.state is _S.ENDED or part_of(life, node_id) is None:
        return "stale", 0
    if life.stop is not None:
        return life.stop.reason, max(0, life.stop.deadline_ms - now_ms)
    if life.ending is not None and life.ending.cause is not Cause.SUCCEEDED:
        return life.ending.cause, 0
    return None


def _claim(life: AttemptLife, event: ClaimAsked, now_ms: int) -> Outcome:
    part = part_of(life, event.node_id)
    if part is None or event.fence != life.fence:
        return life, (Refuse(event.node_id, "this host holds no part of that attempt under that fence"),)
    if life.state is _S.ENDED or life.ending is not None or life.stop is not None:
        return life, (Refuse(event.node_id, "the attempt has ended or is being stopped"),)
    if part.state in _MAY_RUN and part.boot_id == event.boot_id and part.nonce == event.nonce:
        # The host counts a new lease from this claim: so must the server.
        return _with_part(life, replace(part, claimed_ms=max(now_ms, part.claimed_ms))), (Grant(event.node_id),)
    if part.state is not _H.UNCLAIMED:
        return life, (Refuse(event.node_id, "this part was claimed before"),)
    claimed = replace(part, state=_H.CLAIMED, boot_id=event.boot_id, nonce=event.nonce, claimed_ms=now_ms)
    life = _with_part(life, claimed)
    if life.state is _S.PLACED:
        life = _moved(life, _S.CLAIMING)
    return life, (Grant(event.node_id),)


def _started(life: AttemptLife, part: HostPart, now_ms: int) -> Outcome:
    if part.state is not _H.CLAIMED:
        return life, ()
    life = _with_part(life, replace(part, state=_H.STARTED))
    awaited = life.resume_state if life.state is _S.LOST else life.state
    if awaited is _S.CLAIMING and all(host.state not in {_H.UNCLAIMED, _H.CLAIMED} for host in life.hosts):
        deadline = None if life.wall_time_ms is None else now_ms + life.wall_time_ms
        life = replace(life, wall_deadline_ms=deadline)
        # The last start may be heard while another host is lost: then it is RUNNING once that one is heard again.
        return (replace(life, resume_state=_S.RUNNING) if life.state is _S.LOST else _moved(life, _S.RUNNING)), ()
    return life, ()


def _exited(life: AttemptLife, part: HostPart, verdict: Verdict) -> Outcome:
    if part.state not in _MAY_RUN:
        return life, ()
    life = _with_part(life, replace(part, state=_H.EXITED))
    if life.state is _S.ENDED:
        return life, ()
    everyone_done = all(host.state in _OVER for host in life.hosts)
    if verdict.cause is not Cause.SUCCEEDED or everyone_done:
        return _ending(life, verdict)
    if life.ending is not None:
        return _settled(life, ())
    if life.stop is not None and not any(host.state in _MAY_RUN for host in life.hosts):
        # The others were never claimed, and are not to be any more: nobody else will report an end.
        why = "stopped: some hosts had ended well, and the others had not claimed it yet"
        return _ending(life, Verdict(STOP_CAUSES[life.stop.reason], why))
    return life, ()


def _cleaned(life: AttemptLife, part: HostPart) -> Outcome:
    if part.state is _H.CLEAN:
        return life, ()
    was_over = part.state in _OVER
    life = _with_part(life, replace(part, state=_H.CLEAN))
    if life.state is _S.ENDED or was_over:
        return life, ()
    return _ending(life, Verdict(Cause.LAUNCH_FAILED, f"{part.node_id} is clean without ever having reported an exit"))


def _listed(life: AttemptLife, part: HostPart, *, is_listed: bool, now_ms: int) -> AttemptLife:
    """A host that lost its record may still run the program: its supervisor fences itself when the lease ends."""
    if part.state not in _MAY_RUN or is_listed == (part.omitted_ms is None):
        return life
    return _with_part(life, replace(part, omitted_ms=None if is_listed else now_ms))


def _stop(life: AttemptLife, asked: StopRequest) -> Outcome:
    if life.state is _S.ENDED:
        return life, ()
    before = life.stop
    if before is not None:
        reason = max(before.reason, asked.reason, key=STOP_URGENCY.__getitem__)
        asked = StopRequest(reason, min(before.deadline_ms, asked.deadline_ms))
        if asked == before:
            return life, ()
    life = replace(life, stop=asked)
    if life.state is _S.LOST:
        life = replace(life, resume_state=_S.STOPPING)
    elif life.state is not _S.STOPPING:
        life = _moved(life, _S.STOPPING)
    rings = tuple(Ring(host.node_id) for host in life.hosts if host.state in _MAY_RUN)
    if not rings and life.ending is None:
        why = "stopped before any host had claimed it" if _is_untouched(life) else "stopped after its hosts had exited"
        life = replace(life, ending=Verdict(STOP_CAUSES[asked.reason], why))
    return _settled(life, rings)


def _is_untouched(life: AttemptLife) -> bool:
    return all(host.state is _H.UNCLAIMED for host in life.hosts)


def _tick(life: AttemptLife, tick: Tick, now_ms: int, timers: Timers) -> Outcome:
    if life.state is _S.ENDED:
        return _clean_rebooted(life, tick), ()
    life, reboot = _seen_reboots(life, tick)
    if reboot is not None:
        return _ending(life, reboot)
    if life.wall_deadline_ms is not None and now_ms >= life.wall_deadline_ms and life.stop is None:
        return _stop(life, StopRequest(StopReason.WALLTIME, now_ms + life.stop_grace_ms))
    life, commands = _contact(life, tick, now_ms, timers)
    if life.state is _S.ENDED:
        return life, commands
    return _ring_unclaimed(life, commands, now_ms, timers)


def _clean_rebooted(life: AttemptLife, tick: Tick) -> AttemptLife:
    """A reboot proves that nothing of the attempt runs on: its part is clean."""
    for part in life.hosts:
        if part.state is not _H.CLEAN and _has_rebooted(part, tick):
            life = _with_part(life, replace(part, state=_H.CLEAN))
    return life


def _seen_reboots(life: AttemptLife, tick: Tick) -> tuple[AttemptLife, Verdict | None]:
    verdict = None
    for part in life.hosts:
        if part.state in _NOT_YET_CLEAN and _has_rebooted(part, tick):
            if part.state is not _H.EXITED:
                verdict = Verdict(Cause.NODE_LOST, f"{part.node_id} has rebooted: boot {part.boot_id} is gone")
            life = _with_part(life, replace(part, state=_H.CLEAN))
    return life, verdict


def _has_rebooted(part: HostPart, tick: Tick) -> bool:
    hearing = tick.hearings.get(part.node_id)
    return hearing is not None and part.boot_id is not None and hearing.boot_id != part.boot_id


def _contact(life: AttemptLife, tick: Tick, now_ms: int, timers: Timers) -> Outcome:
    """LOST and back, and the end of leases. No lease ends soon after the control plane's own start (R15)."""
    lost: list[NodeId] = []
    may_expire = now_ms - tick.server_started_ms >= timers.no_expiry_after_start_ms
    for part in life.hosts:
        if part.state not in _MAY_RUN or part.is_past_lease:
            continue
        hearing = tick.hearings.get(part.node_id)
        heard_ms = hearing.heard_ms if hearing else 0
        if part.omitted_ms is not None:
            heard_ms = min(heard_ms, part.omitted_ms)
        silence_ms = now_ms - max(part.claimed_ms, heard_ms)
        if silence_ms >= timers.server_lease_ms and may_expire:
            life = _with_part(life, replace(part, is_past_lease=True))
        if silence_ms >= timers.lost_ms:
            lost.append(part.node_id)
    if not lost:
        if life.state is _S.LOST and not any(part.is_past_lease for part in life.hosts):
            is_stopping = life.stop is not None or life.ending is not None
            resumed = _S.STOPPING if is_stopping else life.resume_state or _S.RUNNING
            life = replace(_moved(life, resumed), resume_state=None)
        return life, ()
    if life.state is not _S.LOST:
        life = replace(_moved(life, _S.LOST), resume_state=life.state)
    return _lost(life, lost) if may_expire else (life, ())


def _lost(life: AttemptLife, lost: list[NodeId]) -> Outcome:
    expired = [part.node_id for part in life.hosts if part.is_past_lease]
    if expired:
        return _ending(life, Verdict(Cause.NODE_LOST, f"the lease of {', '.join(expired)} ended without a word"))
    if life.on_node_loss is NodeLossRule.FENCED:
        life = replace(
            life,
            hosts=tuple(replace(part, is_past_lease=True) if part.node_id in lost else part for part in life.hosts),
        )
        return _ending(life, Verdict(Cause.NODE_LOST, f"{', '.join(lost)} is lost; the job relaunches fenced"))
    return life, ()


def _ring_unclaimed(life: AttemptLife, commands: tuple[Command, ...], now_ms: int, timers: Timers) -> Outcome:
    if life.state not in _STARTING:
        return life, commands
    waiting = [part for part in life.hosts if part.state is _H.UNCLAIMED]
    if waiting and now_ms - life.placed_ms >= timers.place_again_ms:
        names = ", ".join(part.node_id for part in waiting)
        proof = f"unclaimed by {names} for {timers.place_again_ms // 1000} s"
        return _ending(life, Verdict(Cause.LAUNCH_FAILED, proof))
    for part in waiting:
        if now_ms - max(life.placed_ms, part.rung_ms) >= timers.ring_again_ms:
            life = _with_part(life, replace(part, rung_ms=now_ms))
            commands = (*commands, Ring(part.node_id))
    return life, commands


def _ending(life: AttemptLife, verdict: Verdict) -> Outcome:
    """The cause is known (the first one is the root; later ones are its cascade). Others are asked to stop."""
    if life.ending is None:
        life = replace(life, ending=verdict)
    rings = tuple(Ring(part.node_id) for part in life.hosts if part.state in _MAY_RUN and not part.is_past_lease)
    if rings and life.state not in {_S.STOPPING, _S.LOST}:
        life = _moved(life, _S.STOPPING)
    return _settled(life, rings)


def _settled(life: AttemptLife, commands: tuple[Command, ...]) -> Outcome:
    if life.ending is None or any(part.state in _MAY_RUN and not part.is_past_lease for part in life.hosts):
        return life, commands
    life = _moved(life, _S.ENDED)
    for part in life.hosts:
        if part.state is _H.UNCLAIMED:
            life = _with_part(life, replace(part, state=_H.CLEAN))
    return life, (*commands, Ended(life.ending or Verdict(Cause.LAUNCH_FAILED, "no cause is known")))


def _moved(life: AttemptLife, state: AttemptState) -> AttemptLife:
    require_edge(ATTEMPT_EDGES, life.state, state)
    return replace(life, state=state)


def _with_part(life: AttemptLife, part: HostPart) -> AttemptLife:
    before = part_of(life, part.node_id)
    if before is not None and before.state is not part.state:
        require_edge(HOST_PART_EDGES, before.state, part.state)
    return replace(life, hosts=tuple(part if host.node_id == part.node_id else host for host in life.hosts))
