"""Rows of the world's database: what a tenant asked for, and the notice that an attempt was given."""

from dataclasses import dataclass

from muster.domain.ids import GpuUuid, JobId
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import ReclaimState
from scheduler.solve.placement_rule import ANYWHERE, PlacementRule


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the tenant asked for. ``min_nodes``: an elastic job runs on so few as well, on up to ``max_nodes``.

    ``notice_ms``: of its tier, None where no rule takes it back; ``min_run_ms``: for so long not.
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

    ``beneficiary``: None where it is taken for nobody in particular; ``gpus`` are those that it gives, ``keeps`` those
    with which an elastic victim goes on. ``is_told``: a host of it knows, so it leaves whatever becomes of the
    beneficiary. ``hold_ended``: why nothing is held any more for that one.
    """

    committed_ms: int
    deadline_ms: int
    beneficiary: JobId | None = None
    gpus: tuple[GpuUuid, ...] = ()
    keeps: tuple[GpuUuid, ...] = ()
    is_told: bool = True
    hold_ended: str | None = None
    state: ReclaimState = ReclaimState.NOTIFIED
    settled_ms: int | None = None
