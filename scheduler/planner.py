"""The planner: whole gangs onto admitted, free GPUs of one cohort; one sentence for each job that waits.

Pure: the same fleet, queue and policy give the same plan (I19). Jobs go by tier priority, then age.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from health.admission import AdmissionFacts, Refusal, refusal_of
from muster.domain.ids import GpuUuid, JobId, NodeId
from muster.domain.policy import Policy


@dataclass(frozen=True, slots=True)
class GpuView:
    uuid: GpuUuid
    node_id: NodeId
    slot_index: int
    cohort_key: str
    facts: AdmissionFacts


@dataclass(frozen=True, slots=True)
class WaitingJob:
    job_id: JobId
    version: int
    tier: str
    queued_ms: int
    nodes: int
    gpus_per_node: int
    avoid_nodes: frozenset[NodeId] = frozenset()


@dataclass(frozen=True, slots=True)
class Placement:
    """One gang: the GPUs of each node, in node rank order."""

    job_id: JobId
    version: int
    parts: tuple[tuple[NodeId, tuple[GpuUuid, ...]], ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    job_id: JobId
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    placements: tuple[Placement, ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(slots=True)
class _Free:
    """Free admitted GPUs, cohort by cohort and node by node, for one tier."""

    by_cohort: dict[str, dict[NodeId, list[GpuView]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    refused: Counter[Refusal] = field(default_factory=Counter)
    num_gpus: int = 0


_WORDS: Final[Mapping[Refusal, str]] = {
    Refusal.MIG_ENABLED: "in MIG mode",
    Refusal.NODE_CONTACT: "on hosts that are silent or lost",
    Refusal.CORDONED: "cordoned",
    Refusal.HELD: "held by other jobs or being cleaned",
    Refusal.STANDING: "without a standing that this tier admits",
}


def plan(gpus: Sequence[GpuView], queue: Iterable[WaitingJob], policy: Policy) -> Plan:
    """Place what fits, in order; a gang that does not fit waits and is passed by smaller ones behind it."""
    taken: set[GpuUuid] = set()
    placements: list[Placement] = []
    waiting: list[Waiting] = []
    ordered = sorted(queue, key=lambda job: (-_priority(policy, job.tier), job.queued_ms, job.job_id))
    for job in ordered:
        if job.tier not in policy.tiers:
            waiting.append(Waiting(job.job_id, f"the policy no longer defines the tier {job.tier}"))
            continue
        free = _free_gpus(gpus, taken, policy, job.tier)
        parts = _choose(free, job)
        if parts is None:
            waiting.append(Waiting(job.job_id, _explain(free, job)))
            continue
        taken.update(uuid for _, uuids in parts for uuid in uuids)
        placements.append(Placement(job.job_id, job.version, parts))
    return Plan(tuple(placements), tuple(waiting))


def _priority(policy: Policy, tier: str) -> int:
    return policy.tiers[tier].priority if tier in policy.tiers else -1


def _free_gpus(gpus: Sequence[GpuView], taken: set[GpuUuid], policy: Policy, tier: str) -> _Free:
    free = _Free(num_gpus=len(gpus))
    for gpu in gpus:
        refusal = Refusal.HELD if gpu.uuid in taken else refusal_of(gpu.facts, policy.tier(tier))
        if refusal is None:
            free.by_cohort[gpu.cohort_key][gpu.node_id].append(gpu)
        else:
            free.refused[refusal] += 1
    return free


def _choose(free: _Free, job: WaitingJob) -> tuple[tuple[NodeId, tuple[GpuUuid, ...]], ...] | None:
    """The fullest nodes that fit, so that large holes stay whole; the first cohort (by key) that holds the gang."""
    for cohort in sorted(free.by_cohort):
        fitting = [
            (len(views), node_id, views)
            for node_id, views in free.by_cohort[cohort].items()
            if len(views) >= job.gpus_per_node and node_id not in job.avoid_nodes
        ]
        if len(fitting) >= job.nodes:
            fitting.sort(key=lambda candidate: candidate[:2])
            return tuple(
                (node_id, tuple(view.uuid for view in sorted(views, key=_slot)[: job.gpus_per_node]))
                for _, node_id, views in sorted(fitting[: job.nodes], key=lambda candidate: candidate[1])
            )
    return None


def _slot(view: GpuView) -> int:
    return view.slot_index


def _explain(free: _Free, job: WaitingJob) -> str:
    needed = f"needs {job.nodes} × {job.gpus_per_node} GPUs of one cohort"
    if not free.num_gpus:
        return f"{needed}; no host is enrolled"
    num_free = sum(len(views) for nodes in free.by_cohort.values() for views in nodes.values())
    reasons = [f"{count} {_WORDS[refusal]}" for refusal, count in free.refused.most_common()]
    if job.avoid_nodes:
        reasons.append(f"{len(job.avoid_nodes)} hosts avoided after a fault there")
    taken = f" ({', '.join(reasons)})" if reasons else ""
    return f"{needed}; {num_free} of {free.num_gpus} GPUs are free to this tier{taken}"
