"""The events that the attempt's machine takes, and the commands that it gives."""

from collections.abc import Mapping
from dataclasses import dataclass

from muster.domain.ids import Fence, NodeId
from muster.domain.lifecycle.contact import LastContact
from muster.domain.lifecycle.model import AttemptLifecycle, Verdict
from muster.domain.states import StopReason


@dataclass(frozen=True, slots=True)
class ClaimRequested:
    """A host requests its part of the attempt.

    ``can_wait``: the host can prepare and wait for its go; an older one starts as soon as it is granted.
    ``is_checked``: the host's GPUs are checked first, so that even a single host reports when it is ready. ``lacks``:
    features that the job requires and the host does not have.
    """

    node_id: NodeId
    fence: Fence
    boot_id: str
    nonce: str
    can_wait: bool = False
    is_checked: bool = False
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """All that the program needs is there on this host. One that is not ready reports that by its exit."""

    node_id: NodeId
    fence: Fence
    boot_id: str


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
class StopRequested:
    reason: StopReason
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class PairwiseDone:
    """The hosts have met in pairs, all ready. ``bad``: hosts that must not start, and ``why``; none: all may."""

    bad: tuple[NodeId, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes. ``hearings``: of each host in this attempt; ``server_started_ms``: of the control plane."""

    hearings: Mapping[NodeId, LastContact]
    server_started_ms: int


Event = ClaimRequested | Ready | PairwiseDone | Started | Exited | Cleaned | Listed | StopRequested | Tick


@dataclass(frozen=True, slots=True)
class Grant:
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Refuse:
    node_id: NodeId
    why: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Wake the host over the broker; its next heartbeat brings the order or the stop in any case."""

    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Ended:
    verdict: Verdict


Command = Grant | Refuse | Wake | Ended
Outcome = tuple[AttemptLifecycle, tuple[Command, ...]]
