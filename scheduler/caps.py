"""The cap on what a tenant may lose to reclaim within a window (I9): how much that is now, and from when on more."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from muster.domain.ids import AttemptId, TenantId
from muster.domain.policy import Policy
from scheduler.model import Workload
from scheduler.topology import NEVER_MS


def allowances(workload: Workload, policy: Policy, notified: Collection[AttemptId]) -> dict[TenantId, float]:
    """GPUs that each tenant may still lose in this window; ``notified``: the victims of reclaims that stand."""
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


class Refills:
    """When tenants may lose more again, as their losses leave the window; of later losses nothing is known."""

    def __init__(self, workload: Workload, policy: Policy) -> None:
        self._now_ms = workload.now_ms
        self._coming: dict[TenantId, list[tuple[int, int]]] = defaultdict(list)
        window_ms = round(policy.reclaim.window_s * 1000)
        for loss in sorted(workload.losses, key=lambda loss: loss.at_ms):
            if loss.at_ms + window_ms > workload.now_ms:
                self._coming[loss.tenant_id].append((loss.at_ms + window_ms, loss.num_gpus))

    def moments_ms(
        self, victims: Iterable[tuple[int, TenantId, int]], allowance: Mapping[TenantId, float]
    ) -> dict[int, int]:
        """From when on the cap lets each go beside all of its tenant before it; ``NEVER_MS``: nobody knows.

        ``victims``: number, tenant and GPUs of each, in the order in which they would be taken.
        """
        found: dict[int, int] = {}
        taken: Counter[TenantId] = Counter()
        for number, tenant, num_gpus in victims:
            taken[tenant] += num_gpus
            found[number] = self._from_ms(tenant, taken[tenant] - allowance[tenant])
        return found

    def _from_ms(self, tenant: TenantId, missing: float) -> int:
        if missing <= 0:
            return self._now_ms
        for at_ms, num_gpus in self._coming[tenant]:
            missing -= num_gpus
            if missing <= 0:
                return at_ms
        return NEVER_MS
