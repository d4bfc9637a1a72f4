"""The cap on what a tenant may lose to reclaim within a window (I9)."""

from collections import Counter, defaultdict
from collections.abc import Collection

from muster.domain.ids import AttemptId, TenantId
from muster.domain.policy.document import Policy
from scheduler.model import Workload


def allowances(workload: Workload, policy: Policy, notified: Collection[AttemptId]) -> dict[TenantId, float]:
    """Return how many GPUs each tenant may still lose in this window.

    ``notified``: the victims of standing reclaims.
    """
    sizes: dict[TenantId, list[int]] = defaultdict(list)
    lost: Counter[TenantId] = Counter()
    keeps = {reclaim.victim: len(reclaim.keeps) for reclaim in workload.reclaims}
    for attempt in workload.running:
        sizes[attempt.tenant_id].append(len(attempt.gpus))
        if attempt.attempt_id in notified:
            lost[attempt.tenant_id] += len(attempt.gpus) - keeps.get(attempt.attempt_id, 0)
    since_ms = workload.now_ms - policy.reclaim.window_s * 1000
    for loss in workload.losses:
        if loss.at_ms > since_ms:
            lost[loss.tenant_id] += loss.num_gpus
    peaks = {tenant: max(workload.peak_gpus.get(tenant, 0), sum(held)) for tenant, held in sizes.items()}
    return {
        tenant: max(policy.reclaim.cap_fraction * peaks[tenant], min(held)) - lost[tenant]
        for tenant, held in sizes.items()
    }
