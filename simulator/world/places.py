"""Checks of places by the rules of a world, computed apart from the scheduler (I4, I6)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from muster.domain.ids import GpuUuid, NodeId, TenantId
from scheduler.model import Reclaim
from scheduler.solve.placement_rule import ANYWHERE
from simulator.planning.rules import LEVELS, Rules
from simulator.world.rows import JobRow


def fault_of_place(rules: Rules, row: JobRow, nodes: Sequence[NodeId]) -> tuple[str, str] | None:
    """Return the invariant that these hosts, in rank order, would break, and how; None: none."""
    if not rules.is_planned:
        return None
    cohorts = {rules.cohorts[node_id] for node_id in nodes}
    if len(cohorts) > 1:
        return "I4", f"{row.job_id} is on {sorted(cohorts)} at once"
    if row.required_level is not None and not _is_within(rules, nodes, row.required_level):
        return "level", f"{row.job_id} requires one {row.required_level}, and is on {_text_of(rules, nodes)}"
    balance = row.placement.balance
    if balance is not None and not all(rules.domain(node_id, balance) for node_id in nodes):
        return "level", f"{row.job_id} is spread over each {balance}, and is on {_text_of(rules, nodes)}"
    for one in row.placement.slices:
        for first in range(0, len(nodes), one.nodes):
            if not _is_within(rules, nodes[first : first + one.nodes], one.level):
                return "level", f"a slice of {row.job_id} leaves its {one.level}: {_text_of(rules, nodes)}"
    return None


def fault_of_reclaimed(
    rules: Rules,
    row: JobRow,
    assigned: Sequence[GpuUuid],
    chosen: Sequence[Reclaim],
    gpus: Mapping[NodeId, Sequence[GpuUuid]],
) -> str | None:
    """Return why ``assigned`` is no whole place of the beneficiary, or which victims give nothing of it, or None."""
    parts = {node_id: sum(gpu in assigned for gpu in part) for node_id, part in gpus.items()}
    nodes = [node_id for node_id, number in parts.items() if number]
    if any(parts[node_id] != row.gpus_per_node for node_id in nodes):
        return f"{row.job_id} would have {parts} GPUs, and needs {row.gpus_per_node} of each host"
    if not row.min_nodes <= len(nodes) <= row.most_nodes:
        return f"{row.job_id} would have {len(nodes)} hosts, of {row.min_nodes} to {row.most_nodes}"
    fault = fault_of_place(rules, replace(row, placement=ANYWHERE), nodes)
    if fault is not None:
        return fault[1]
    idle = [wanted.victim for wanted in chosen if not set(wanted.gpus) & set(assigned)]
    return f"{idle} lose GPUs, and {row.job_id} gets none of them" if idle else None


def _is_within(rules: Rules, nodes: Sequence[NodeId], level: str) -> bool:
    """Return whether all are in one known domain."""
    domains = {rules.domain(node_id, level) for node_id in nodes}
    return len(domains) == 1 and "" not in domains


def _text_of(rules: Rules, nodes: Sequence[NodeId]) -> str:
    return ", ".join(f"{node_id} ({'/'.join(rules.paths[node_id])} of {len(LEVELS)} levels)" for node_id in nodes)


def over_quota(rules: Rules, assigned: Mapping[tuple[str, str], int], row: JobRow) -> str | None:
    """Return which of the job's tenant and those above it has more of its tier than it may; None: none."""
    for above in rules.tenancy.line(TenantId(row.tenant)):
        quota = rules.tenancy.quotas.get((above, row.tier))
        has = sum(
            number
            for (tenant, tier), number in assigned.items()
            if tier == row.tier and above in rules.tenancy.line(TenantId(tenant))
        )
        if quota is not None and quota.most is not None and has > quota.most:
            return f"{above} has {has} GPUs of {row.tier}, of {quota.most} at most"
    return None
