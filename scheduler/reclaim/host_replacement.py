"""Reclaimed hosts that replace lost hosts of a gang, so that it continues with the others. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from scheduler.fleet.topology import FleetState, Ints
from scheduler.forecast.end_times import CLEANING_MS
from scheduler.holds.reclaim_holds import ReclaimHolds
from scheduler.model import Parts, WaitingJob
from scheduler.solve.placement_rule import PlacementRule
from scheduler.solve.recovery import good_ranks, required_group
from scheduler.solve.slice_homes import SliceHomes
from scheduler.solve.solver import Request


@dataclass(frozen=True, slots=True)
class Missing:
    """The part that a gang lacks. ``kept``: its good GPUs, which are free; ``request``: for the lost hosts alone."""

    kept: Ints
    request: Request


def missing_hosts(state: FleetState, request: Request, last: Parts) -> Missing | None:
    """Return the request for hosts in place of the lost ones, where a gang keeps some; other jobs may run there."""
    state = state.for_tier(request.tier)
    good, layout = good_ranks(state, request, last, ()), state.layout
    ranks = [] if good is None else [part for _, part in good.ranks]
    kept = [part for part in ranks if part is not None]
    if good is None or not kept or len(kept) == len(ranks):
        return None
    gpus = np.concatenate(kept)
    home = required_group(state, request, np.unique(layout.cell_of_gpu[gpus]))
    if home is None:
        return None
    cells = np.flatnonzero(home & (layout.cell_cohort == good.cohort))
    homes = SliceHomes(layout, request.rule.slices, ranks)
    for rank in (rank for rank, part in enumerate(ranks) if part is None):
        cells = cells[homes.admits(rank, cells)]
    there, had = set(cells.tolist()), {node_id for node_id, _ in last}
    elsewhere = (node for node, own in layout.cells_of_node.items() if node in had or there.isdisjoint(own))
    avoided = request.avoid_nodes.union(elsewhere)
    rule = PlacementRule(labels=request.rule.labels)
    num_missing = len(ranks) - len(kept)
    return Missing(gpus, replace(request, nodes=num_missing, avoid_nodes=avoided, preferred=None, rule=rule))


def last_parts(state: FleetState, job: WaitingJob, holds: ReclaimHolds, now_ms: int) -> Parts:
    """Return the job's last parts if good GPUs of them are held together with reclaimed ones.

    Empty if the job was not interrupted or may be anywhere, or once the victims should have left.
    """
    if job.interrupted_ms is None or job.required_level is None or job.min_nodes is not None:
        return ()
    had = state.layout.gpu_indices(uuid for _, uuids in job.keep for uuid in uuids)
    is_kept = bool(np.isin(had, holds.hold_of(job.job_id)).any())
    return job.keep if is_kept and now_ms < holds.deadline_ms(job.job_id) + CLEANING_MS else ()
