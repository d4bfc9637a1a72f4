"""The truth, which no part of the world knows: the programs that run on each host, and the invariants on them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from muster.domain.ids import AttemptId, Fence, GpuUuid, JobId, NodeId
from muster.domain.job.spec import NodeLossRule

Place = tuple[AttemptId, NodeId]


class ViolationError(AssertionError):
    """A broken invariant, which the message names first."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def require(holds: bool, invariant: str, what: str) -> None:  # noqa: FBT001  # reads as a sentence where it stands
    if not holds:
        raise ViolationError(invariant, what)


@dataclass(frozen=True, slots=True)
class Run:
    """One program of an attempt on one host. ``awaited``: the hosts that must be ready before it starts."""

    job_id: JobId
    attempt_id: AttemptId
    node_id: NodeId
    fence: Fence
    gpus: Sequence[GpuUuid]
    rule: NodeLossRule
    awaited: Sequence[NodeId] = ()


@dataclass(slots=True)
class Lasting:
    """Time of the world. ``end_ms`` None: it lasts still."""

    start_ms: int
    end_ms: int | None = None

    def num_ms(self, until_ms: int) -> int:
        return max(0, min(until_ms, until_ms if self.end_ms is None else self.end_ms) - self.start_ms)


@dataclass(slots=True)
class Truth:
    """The programs of a world.

    ``running``: programs that compute; ``present``: also ended ones whose remains are still on the GPUs; ``spans``:
    for how long each was present.
    """

    running: dict[JobId, dict[Place, Run]] = field(default_factory=dict)
    present: dict[Place, Run] = field(default_factory=dict)
    started: set[Place] = field(default_factory=set)
    ready: set[Place] = field(default_factory=set)
    user_of: dict[GpuUuid, AttemptId] = field(default_factory=dict)
    newest_fence: dict[JobId, Fence] = field(default_factory=dict)
    num_commits: int = 0
    clock: Callable[[], int] = int
    spans: dict[Place, Lasting] = field(default_factory=dict)

    def starts(self, run: Run, holders: dict[GpuUuid, AttemptId]) -> None:
        """Require I13 and I22 at the start of a program, and that a gang starts as a whole or not at all."""
        place = (run.attempt_id, run.node_id)
        unready = [node_id for node_id in run.awaited if (run.attempt_id, node_id) not in self.ready]
        require(not unready, "all or none", f"{place} starts before {unready} is ready")
        require(place not in self.started, "I13", f"{place} starts twice")
        others = self.running.setdefault(run.job_id, {})
        for other in others.values():
            if other.attempt_id == run.attempt_id:
                continue
            require(
                other.node_id != run.node_id, "I13", f"{run.attempt_id} starts next to {other.attempt_id} on one host"
            )
            require(
                run.rule is not NodeLossRule.WAIT,
                "I13",
                f"{run.attempt_id} starts on {run.node_id} while {other.attempt_id} runs on {other.node_id}",
            )
        for gpu in run.gpus:
            require(
                gpu not in self.user_of, "I22", f"{run.attempt_id} starts on {gpu}, used by {self.user_of.get(gpu)}"
            )
            holder = holders.get(gpu)
            require(holder == run.attempt_id, "I22", f"{run.attempt_id} starts on {gpu}, held by {holder}")
            self.user_of[gpu] = run.attempt_id
        others[place] = run
        self.present[place] = run
        self.spans[place] = Lasting(self.clock())
        self.started.add(place)

    def ends(self, place: Place) -> None:
        """Record that the program computes no more."""
        run = self.present.get(place)
        if run is not None:
            self.running[run.job_id].pop(place, None)

    def vanishes(self, place: Place) -> None:
        """Record that nothing of it is left on the host."""
        self.ends(place)
        run = self.present.pop(place, None)
        if run is not None:
            self.spans[place].end_ms = self.clock()
            for gpu in run.gpus:
                del self.user_of[gpu]

    def runs(self, place: Place) -> bool:
        run = self.present.get(place)
        return run is not None and place in self.running[run.job_id]

    def placed(self, job_id: JobId, fence: Fence) -> None:
        before = self.newest_fence.get(job_id, 0)
        require(fence > before, "I2", f"the fence of {job_id} falls from {before} to {fence}")
        self.newest_fence[job_id] = fence

    def commits(self, job_id: JobId, fence: Fence) -> None:
        """Record a checkpoint of the program: only the newest attempt's may be accepted."""
        self.num_commits += 1
        newest = self.newest_fence[job_id]
        require(fence == newest, "I13", f"{job_id} commits under fence {fence} after {newest} was placed")
