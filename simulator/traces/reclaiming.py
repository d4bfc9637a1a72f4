"""Nodes reclaimed for a job of a higher tier: with the notice, the least run and the cap of the default policy.

Victims are attempts of reclaimable tiers below the job's. The first are the ones with the fewest GPU-seconds to do
again; no attempt is a victim that is not needed. The planner chooses by domains and can shrink elastic jobs
(``scheduler.reclaim``); here a number of nodes is needed, and a job leaves whole.
"""

from collections.abc import Iterator

from muster.domain.policy.document import DEFAULT_POLICY
from simulator.traces.cluster import Cluster
from simulator.traces.nodes import give_back


def take_back(cluster: Cluster, number: int) -> None:
    """Give notice to the fewest candidates that let this job start.

    None gets a notice if all of them do not suffice, or if attempts with a notice suffice already.
    """
    if not cluster.waiting.has_tiers:
        return
    job = cluster.jobs[number]
    going = [one for one in cluster.reported if one in cluster.running]
    if _room(cluster, going, job.gpus_per_node) >= job.num_nodes:
        return
    chosen: list[int] = []
    for one in _candidates(cluster, number):
        chosen.append(one)
        if _room(cluster, going + chosen, job.gpus_per_node) >= job.num_nodes:
            break
    else:
        return
    for one in chosen[::-1]:
        fewer = [other for other in chosen if other != one]
        if _room(cluster, going + fewer, job.gpus_per_node) >= job.num_nodes:
            chosen = fewer
    for one in chosen:
        cluster.give_notice(one, cluster.now_s + (DEFAULT_POLICY.tiers[cluster.jobs[one].tier].notice_s or 0.0))


def _room(cluster: Cluster, going: list[int], gpus_per_node: int) -> int:
    """Return how many nodes have so many free GPUs once these jobs have left."""
    free = cluster.nodes.free.copy()
    for one in going:
        give_back(free, cluster.running[one], cluster.jobs[one].gpus_per_node)
    return sum(nodes.bit_count() for nodes in free[gpus_per_node:])


def _candidates(cluster: Cluster, number: int) -> list[int]:
    """Return the candidates, the cheapest first, and of each tenant no more than it may still lose."""
    allowed = _allowances(cluster)
    found = []
    for _, one in sorted(_costs(cluster, number)):
        job = cluster.jobs[one]
        if allowed[job.tenant] >= job.gpus:
            allowed[job.tenant] -= job.gpus
            found.append(one)
    return found


def _costs(cluster: Cluster, number: int) -> Iterator[tuple[float, int]]:
    """Yield the cost in GPU-seconds, and the number, of each running job that this one may reclaim from."""
    priority_of = cluster.waiting.priority_of
    for one in cluster.running:
        tier = DEFAULT_POLICY.tiers.get(cluster.jobs[one].tier) if one >= 0 else None
        if tier is None or tier.notice_s is None or one in cluster.reported or priority_of(one) >= priority_of(number):
            continue
        ran_s = cluster.ran_s(one)
        if ran_s >= tier.min_run_s:
            yield ran_s % cluster.saves_every_s * cluster.jobs[one].gpus, one


def _allowances(cluster: Cluster) -> dict[str, float]:
    """Return the GPUs that each tenant may still lose in this window.

    Its peak is approximated by its present GPUs and the ones that it lost in the window.
    """
    since_s = cluster.now_s - DEFAULT_POLICY.reclaim.window_s
    while cluster.losses and cluster.losses[0][0] <= since_s:
        cluster.losses.popleft()
    lost: dict[str, int] = {}
    for _, one in cluster.losses:
        tenant = cluster.jobs[one].tenant
        lost[tenant] = lost.get(tenant, 0) + cluster.jobs[one].gpus
    held: dict[str, list[int]] = {}
    for one in cluster.running:
        if one >= 0:
            held.setdefault(cluster.jobs[one].tenant, []).append(cluster.jobs[one].gpus)
    return {
        tenant: max(DEFAULT_POLICY.reclaim.cap_fraction * (sum(sizes) + lost.get(tenant, 0)), min(sizes))
        - lost.get(tenant, 0)
        for tenant, sizes in held.items()
    }
