"""The moves of an attempt that both messages and time make: to stop, to end, and each checked against the tables."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from muster.domain.exit.causes import STOP_CAUSES
from muster.domain.ids import NodeId
from muster.domain.lifecycle.attempt_messages import Command, Ended, Outcome, Wake
from muster.domain.lifecycle.model import AttemptLifecycle, HostPart, StopRequest, Verdict
from muster.domain.states import (
    ATTEMPT_EDGES,
    HOST_PART_EDGES,
    STOP_URGENCY,
    AttemptState,
    Cause,
    HostPartState,
    require_edge,
)

_S: Final = AttemptState
_H: Final = HostPartState
MAY_RUN: Final = frozenset({_H.CLAIMED, _H.STARTED})


def part_of(life: AttemptLifecycle, node_id: NodeId) -> HostPart | None:
    for part in life.hosts:
        if part.node_id == node_id:
            return part
    return None


def stop(life: AttemptLifecycle, requested: StopRequest) -> Outcome:
    if life.state is _S.ENDED:
        return life, ()
    before = life.stop
    if before is not None:
        reason = max(before.reason, requested.reason, key=STOP_URGENCY.__getitem__)
        requested = StopRequest(reason, min(before.deadline_ms, requested.deadline_ms))
        if requested == before:
            return life, ()
    life = replace(life, stop=requested)
    if life.state is _S.LOST:
        life = replace(life, resume_state=_S.STOPPING)
    elif life.state is not _S.STOPPING:
        life = moved(life, _S.STOPPING)
    rings = tuple(Wake(host.node_id) for host in life.hosts if host.state in MAY_RUN)
    if not rings and life.ending is None:
        why = "stopped before any host had claimed it" if _is_untouched(life) else "stopped after its hosts had exited"
        life = replace(life, ending=Verdict(STOP_CAUSES[requested.reason], why))
    return settled(life, rings)


def _is_untouched(life: AttemptLifecycle) -> bool:
    return all(host.state is _H.UNCLAIMED for host in life.hosts)


def ending(life: AttemptLifecycle, verdict: Verdict) -> Outcome:
    """Record the cause of the end, and ask the other hosts to stop.

    The first report is the root and later ones are its cascade, unless the first states that it is a cascade itself,
    such as that of a host whose ranks lost the connection to a peer.
    """
    if life.ending is None or _is_root_of(life.ending, verdict):
        life = replace(life, ending=verdict)
    rings = tuple(Wake(part.node_id) for part in life.hosts if part.state in MAY_RUN and not part.is_past_lease)
    if rings and life.state not in {_S.STOPPING, _S.LOST}:
        life = moved(life, _S.STOPPING)
    return settled(life, rings)


def _is_root_of(known: Verdict, verdict: Verdict) -> bool:
    return known.is_cascade and not verdict.is_cascade and verdict.cause is not Cause.SUCCEEDED


def settled(life: AttemptLifecycle, commands: tuple[Command, ...]) -> Outcome:
    if life.ending is None or any(part.state in MAY_RUN and not part.is_past_lease for part in life.hosts):
        return life, commands
    life = moved(life, _S.ENDED)
    for part in life.hosts:
        if part.state is _H.UNCLAIMED:
            life = with_part(life, replace(part, state=_H.CLEAN))
    return life, (*commands, Ended(life.ending or Verdict(Cause.LAUNCH_FAILED, "no cause is known")))


def moved(life: AttemptLifecycle, state: AttemptState) -> AttemptLifecycle:
    require_edge(ATTEMPT_EDGES, life.state, state)
    return replace(life, state=state)


def with_part(life: AttemptLifecycle, part: HostPart) -> AttemptLifecycle:
    before = part_of(life, part.node_id)
    if before is not None and before.state is not part.state:
        require_edge(HOST_PART_EDGES, before.state, part.state)
    return replace(life, hosts=tuple(part if host.node_id == part.node_id else host for host in life.hosts))


def at_fault(life: AttemptLifecycle, parts: Sequence[HostPart]) -> AttemptLifecycle:
    for part in parts:
        life = with_part(life, replace(part, is_at_fault=True))
    return life


def go_when_all_are_ready(life: AttemptLifecycle, commands: tuple[Command, ...], now_ms: int) -> Outcome:
    """Start all hosts, or none: wake the waiting ones once each of the gang has its part ready, and has met others
    where that is asked for.

    Not while one is LOST: the others would only wait for it where their ranks meet.
    """
    waiting = [part for part in life.hosts if part.awaits_go]
    if not waiting or life.state is not _S.CLAIMING or life.awaits_pairwise or life.go_ms is not None:
        return life, commands
    if not are_all_ready(life):
        return life, commands
    return replace(life, go_ms=now_ms), (*commands, *(Wake(part.node_id) for part in waiting))


def are_all_ready(life: AttemptLifecycle) -> bool:
    """Return whether all hosts are ready. The report of a host counts also while the host is silent."""
    state = life.resume_state if life.state is _S.LOST else life.state
    return state is _S.CLAIMING and all(map(_is_ready, life.hosts))


def _is_ready(part: HostPart) -> bool:
    """Return whether a host is ready. A host that cannot wait is ready as soon as it is granted."""
    return part.state is not _H.UNCLAIMED and (part.ready_ms is not None or not part.awaits_go)
