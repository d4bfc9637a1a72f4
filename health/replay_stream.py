"""What goes into a replay (``health.replay``), and what comes out of it, each with its time."""

from dataclasses import dataclass

from health.breaker import BreakerIncident
from health.gpu_case import BurnInResult, Move
from health.score import Score
from muster.domain.evidence import Evidence, GpuSample, GpuSignal
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing


@dataclass(frozen=True, slots=True)
class Placed:
    """A GPU is in this standing from ``at_ms`` on; what the rules made of it before is forgotten.

    ``model``: where it is known; limits that hang on the model are the model's then, as in production.
    """

    at_ms: int
    gpu_uuid: GpuUuid
    node_id: NodeId
    standing: Standing
    model: str = ""


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
    """``node_id``: where a GPU is that nothing was said of before: it is there since its burn-in began."""

    gpu_uuid: GpuUuid
    result: BurnInResult
    node_id: NodeId

    @property
    def at_ms(self) -> int:
        return self.result.ended_ms


@dataclass(frozen=True, slots=True)
class Passed:
    """Nothing but time."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class BreakerClosed:
    """A person closed a scope of the breaker; one that is not open stays as it is."""

    at_ms: int
    scope: str


@dataclass(frozen=True, slots=True)
class Maintained:
    """A maintenance window of a node, from ``at_ms`` up to, and without, ``until_ms``."""

    at_ms: int
    node_id: NodeId
    until_ms: int


Input = Placed | Sampled | GpuSignal | Burned | Passed | BreakerClosed | Maintained


@dataclass(frozen=True, slots=True)
class Told:
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
    """``is_held_back``: the circuit breaker proposes it to a person instead."""

    at_ms: int
    move: Move
    is_held_back: bool = False


@dataclass(frozen=True, slots=True)
class Opened:
    """The circuit breaker opened."""

    at_ms: int
    incident: BreakerIncident


@dataclass(frozen=True, slots=True)
class Held:
    """What is found about a node keeps new work off it from now on: ``by`` this. By nothing: it is free again."""

    at_ms: int
    node_id: NodeId
    by: tuple[Evidence, ...]


Output = Told | Scored | Moved | Opened | Held
