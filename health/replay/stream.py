"""Inputs and outputs of a replay (``health.replay.replay``), each with its time."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from health.scoring.score import Score
from health.standing.breaker import BreakerIncident
from health.standing.gpu_case import BurnInResult, Move
from muster.domain.evidence.findings import Evidence, Finding, GpuSample, GpuSignal
from muster.domain.evidence.repairs import RepairAction, RepairOutcome
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing


@dataclass(frozen=True, slots=True)
class Placed:
    """A GPU is in this standing from ``at_ms`` on; earlier results of the rules about it are forgotten.

    ``model``: where it is known; limits that depend on the model are the model's then, as in production. ``since_ms``:
    since when it has that standing, where that is longer. ``origin``: the standing to which SUSPECT or QUARANTINED
    returns. ``rack``, ``cohort``: where it counts for the breaker, if the ``Fleet`` states their sizes.
    """

    at_ms: int
    gpu_uuid: GpuUuid
    node_id: NodeId
    standing: Standing
    model: str = ""
    since_ms: int | None = None
    origin: Standing | None = None
    rack: str | None = None
    cohort: str | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet that the records are a part of, for the breaker: its number of GPUs, in total, by rack and by cohort.

    Without one the GPUs of the records are the fleet, and no rack or cohort is known.
    """

    at_ms: int
    num_gpus: int
    by_rack: Mapping[str, int] = field(default_factory=dict)
    by_cohort: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KnownBefore:
    """Evidence from before the records begin, under its own id."""

    at_ms: int
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Found:
    """A finding of a rule that needs more than these records hold, such as the other GPUs of a gang (``peers``)."""

    at_ms: int
    finding: Finding


@dataclass(frozen=True, slots=True)
class Sampled:
    """One reading of one GPU. ``is_history``: it came late, and judges nothing."""

    node_id: NodeId
    sample: GpuSample
    is_history: bool = False

    @property
    def at_ms(self) -> int:
        return self.sample.at_ms


@dataclass(frozen=True, slots=True)
class Burned:
    """A finished burn-in. ``node_id``: the node of a GPU without an earlier input, since its burn-in began.

    ``reasons``: the failures as text, which make evidence of it; ``is_wrong``: it gave a wrong result.
    """

    gpu_uuid: GpuUuid
    result: BurnInResult
    node_id: NodeId
    reasons: tuple[str, ...] = ()
    is_wrong: bool = False

    @property
    def at_ms(self) -> int:
        return self.result.ended_ms


@dataclass(frozen=True, slots=True)
class Passed:
    """Time that passed without any other input."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """A person closed a scope of the breaker; one that is not open stays as it is."""

    at_ms: int
    scope: str


@dataclass(frozen=True, slots=True)
class Maintained:
    """A maintenance window of a node, from ``at_ms`` up to, and without, ``until_ms``.

    ``is_drain``: people work on a node that was drained, so that only findings that such work causes weigh nothing.
    """

    at_ms: int
    node_id: NodeId
    until_ms: int
    is_drain: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """An act of a person on a GPU. ``reason`` and ``person``: as they stand in the audit log."""

    at_ms: int
    gpu_uuid: GpuUuid
    node_id: NodeId
    reason: str
    person: str


@dataclass(frozen=True, slots=True)
class Dismissed(Act):
    """Dismissal of the evidence of this fault that was seen between these times."""

    fault_key: str
    onset_ms: int
    last_seen_ms: int


@dataclass(frozen=True, slots=True)
class RepairBegan(Act):
    """Start of a repair. ``action``: the action whose time limit applies."""

    action: RepairAction
    fault_group: str


@dataclass(frozen=True, slots=True)
class RepairEnded(Act):
    """End of a repair. ``began_ms``: when it began. For an outcome of the rules' own, the rules make the move."""

    began_ms: int
    fault_group: str
    outcome: RepairOutcome


@dataclass(frozen=True, slots=True)
class Moving(Act):
    """A move by a person. ``to``: RETIRED; UNPROVEN, which reinstates it; or QUARANTINED, which takes it out."""

    to: Standing


@dataclass(frozen=True, slots=True)
class Overridden(Act):
    """A standing that a person set over its own. It moves nothing, and is passed on to the output."""

    standing: Standing
    until_ms: int


Input = (
    Placed
    | Sampled
    | GpuSignal
    | Burned
    | Passed
    | BreakerClosed
    | Maintained
    | Fleet
    | KnownBefore
    | Found
    | Dismissed
    | RepairBegan
    | RepairEnded
    | Moving
    | Overridden
)


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """Evidence that is new, has another source, or is over. ``what``: new, joined, closed."""

    at_ms: int
    what: str
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Scored:
    at_ms: int
    gpu_uuid: GpuUuid
    score: Score


@dataclass(frozen=True, slots=True)
class Moved:
    """A move. ``is_proposed``: the circuit breaker proposes it to a person instead."""

    at_ms: int
    move: Move
    is_proposed: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The circuit breaker opened."""

    at_ms: int
    incident: BreakerIncident


@dataclass(frozen=True, slots=True)
class Unmet:
    """An act of a person that is refused here: under this policy the GPU has another standing."""

    at_ms: int
    gpu_uuid: GpuUuid
    text: str


@dataclass(frozen=True, slots=True)
class RuleCordon:
    """A change of the evidence that keeps new work off a node.

    ``by``: that evidence; empty where the node is free again. ``is_proposed``: the circuit breaker proposes the hold to
    a person instead, and the node takes new work as before.
    """

    at_ms: int
    node_id: NodeId
    by: tuple[Evidence, ...]
    is_proposed: bool = False


Output = ReplayLine | Scored | Moved | Opened | RuleCordon | Unmet | Overridden
