"""Rows of the world's database: the request of a tenant, and the notice of an attempt."""

from dataclasses import dataclass

from muster.domain.ids import GpuUuid, JobId
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import ReclaimState
from scheduler.solve.placement_rule import ANYWHERE, PlacementRule


@dataclass(frozen=True, slots=True)
class JobRow:
    """The request of a tenant.

    ``min_nodes``: an elastic job runs on so few as well, on up to ``max_nodes``. ``notice_ms``: of its tier, None if no
    rule reclaims it; ``min_run_ms``: its minimum run time.
    """

    job_id: JobId
    key: str
    nodes: int
    gpus_per_node: int
    rule: NodeLossRule
    wall_time_ms: int
    stop_grace_ms: int
    min_nodes: int
    tenant: str
    notice_ms: int | None
    min_run_ms: int
    max_nodes: int | None = None
    tier: str = "on_demand"
    required_level: str | None = None
    preferred_level: str | None = None
    placement: PlacementRule = ANYWHERE

    @property
    def most_nodes(self) -> int:
        return self.nodes if self.max_nodes is None else self.max_nodes

    @property
    def is_elastic(self) -> bool:
        return self.min_nodes < self.most_nodes


@dataclass(frozen=True, slots=True)
class Notice:
    """A reclaim that was committed: from then on its deadline stands (I8, I25).

    ``beneficiary``: None without one; ``gpus``: the GPUs that it gives; ``keeps``: the GPUs with which an elastic
    victim continues. ``is_delivered``: a host of it knows, so it leaves even if the beneficiary no longer needs it.
    ``hold_ended``: why the beneficiary's hold has ended.
    """

    committed_ms: int
    deadline_ms: int
    beneficiary: JobId | None = None
    gpus: tuple[GpuUuid, ...] = ()
    keeps: tuple[GpuUuid, ...] = ()
    is_delivered: bool = True
    hold_ended: str | None = None
    state: ReclaimState = ReclaimState.NOTIFIED
    settled_ms: int | None = None
