"""Arguments of a run, which ``start`` makes: its place among the ranks, and how it saves and shares data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from muster.train.parallel.meshes import ranks_in
from muster.train.parallel.shards import is_sharded
from muster.train.runtime.determinism import average_in_rank_order
from muster.train.values.compute_check import ComputePlan

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from muster.train.checkpoint.lineage import Lineage
    from muster.train.parallel.ranks import Ranks
    from muster.train.report.pace import StepTiming
    from muster.train.report.wire import Channel
    from muster.train.runtime.environment import Environment
    from muster.train.runtime.orders import Orders
    from muster.train.values.on_fault import ValueFaultRule


@dataclass(frozen=True)
class Joined:
    """A rank among the others: its environment, the other ranks, and the channel to the supervisor with its orders."""

    around: Environment
    ranks: Ranks
    channel: Channel
    orders: Orders


@dataclass(frozen=True)
class CheckpointPlan:
    """How a run saves. ``every``: as ``checkpoint_every`` of ``start``; ``lineage``: stored with each checkpoint."""

    every: int | str
    is_asynchronous: bool
    keep: int
    lineage: Lineage


@dataclass(frozen=True)
class ValuePlan:
    """How a run watches its values. ``check_every``: as ``check_replicas_every`` of ``start``, None for ``"auto"``.

    ``compute_every``: as ``check_compute_every``.
    """

    rule: ValueFaultRule
    check_every: int | None
    compute_every: int

    def compute_plan(self, sharing: DataSharing, joined: Joined) -> ComputePlan:
        """Return how often each rank checks the compute of another one that reads different samples."""
        circle = range(joined.ranks.world_size) if sharing.mesh is None else ranks_in(sharing.mesh)
        rerun = joined.around.rerun
        return ComputePlan(self.compute_every, circle, is_expected=rerun is not None and rerun.step is not None)


@dataclass(frozen=True)
class DataSharing:
    """How ranks share the data. ``is_parallel``, ``mesh``: ``data_parallel`` and ``data_mesh`` of ``start``.

    ``is_steady``: gradients are averaged in the order of the ranks.
    """

    seed: int
    is_parallel: bool
    mesh: DeviceMesh | None
    is_steady: bool

    def wrapped(
        self, model: torch.nn.Module, world_size: int, pace: StepTiming
    ) -> tuple[torch.nn.Module, torch.nn.Module]:
        """Return the module to call, and the program's own within it: under DDP where the ranks share the data."""
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model, model.module
        if not self.is_parallel or world_size == 1 or any(map(is_sharded, model.parameters())):
            return model, model
        wrapper = torch.nn.parallel.DistributedDataParallel(model)
        if self.is_steady:
            average_in_rank_order(wrapper, pace)
        return wrapper, model
