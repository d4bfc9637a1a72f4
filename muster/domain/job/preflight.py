"""The preflight before placement: when a host is asked whether a job's needs are there, which host, and for how long.

Pure. A preflight holds no GPU and decides about none. It never keeps a job without end: after a bounded number of hosts
that did not answer, or could not check, the job is placed as if no host had been asked, and its hosts check as they
prepare.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from muster.domain.ids import NodeId

MOST_HOSTS: Final = 3
"""Hosts asked one after the other: the next one may not have the same fault. No further host delays the job."""


class PreflightState(StrEnum):
    """The state of a preflight. ``ABANDONED``: no host could decide.

    ``FAILED``: the tenant has to supply something, or it is out of date. The next one is begun without it.
    """

    REQUESTED = "REQUESTED"
    PASSED = "PASSED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"


@dataclass(frozen=True, slots=True)
class Preflight:
    """The newest one at a job. ``tried``: hosts asked since anything was known of it, this one among them."""

    state: PreflightState
    node_id: NodeId
    deadline_ms: int
    tried: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class MayBePlaced:
    """The preflight has passed or was abandoned, or there is no host to ask."""


@dataclass(frozen=True, slots=True)
class Waits:
    """The job waits for a preflight.

    ``on``: the host that runs it; None: all suitable hosts are busy with others, or what ``why`` states.
    """

    on: NodeId | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A host has to run the preflight. ``tried``: the hosts so far, this one included."""

    node_id: NodeId
    tried: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The preflight ends without a result. ``tried``: the hosts that did not give one."""

    tried: tuple[NodeId, ...]


Decision = MayBePlaced | Waits | Ask | GiveUp


def decide(
    preflight: Preflight | None,
    able: Sequence[NodeId],
    busy: Collection[NodeId],
    now_ms: int,
    *,
    is_out_of_date: bool = False,
) -> Decision:
    """Return what to do about a pending job that needs a preflight.

    Args:
        preflight: the newest one; None: there was none.
        able: hosts that are in contact, accept work and could run the job, the best one first.
        busy: the hosts among them that take no further one now.
        is_out_of_date: an attempt has ended since because a host lacked something.
    """
    is_new = preflight is None or is_out_of_date or preflight.state is PreflightState.FAILED
    if preflight is not None and not is_new:
        if preflight.state is not PreflightState.REQUESTED:
            return MayBePlaced()
        if now_ms < preflight.deadline_ms and preflight.node_id in able:
            return Waits(preflight.node_id)
    tried = () if preflight is None or is_new else preflight.tried
    fresh = [node_id for node_id in able if node_id not in tried]
    if not tried and not fresh:
        return MayBePlaced()
    if not fresh or len(tried) >= MOST_HOSTS:
        return GiveUp(tried)
    free = [node_id for node_id in fresh if node_id not in busy]
    return Ask(free[0], (*tried, free[0])) if free else Waits(None)
