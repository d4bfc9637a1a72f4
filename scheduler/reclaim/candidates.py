"""The reclaim candidates of one cycle: attempts, the time from which they may be reclaimed, their caps and costs."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import numpy as np
import numpy.typing as npt

from muster.domain.ids import TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, Flags, Ints
from scheduler.model import RunningAttempt, Workload
from scheduler.reclaim.caps import allowances
from scheduler.reclaim.lending import Claim
from scheduler.solve.request import Request


class ReclaimCandidates:
    """Candidates by the index of an attempt.

    ``costs`` in GPU-seconds; ``num_gpus``; ``tenants``: a code of its tenant, also as ``tenant_codes``. ``notified``:
    attempts with a notice; the caller adds to the set. ``elastic``: attempts with more hosts than they need.
    """

    def __init__(
        self, attempts: Sequence[RunningAttempt], notified: AbstractSet[int], workload: Workload, policy: Policy
    ) -> None:
        self._attempts, self._notified, self._policy, self._now_ms = attempts, notified, policy, workload.now_ms
        self.still_open: set[int] = set()
        """Notified attempts that remain candidates, in the search for times at which reclaim helps."""
        self.allowance = allowances(workload, policy, {attempts[index].attempt_id for index in notified})
        self.costs: npt.NDArray[np.float64] = np.array([self._cost(one) for one in attempts], dtype=np.float64)
        self._codes = {tenant: code for code, tenant in enumerate(sorted(self.allowance))}
        self.tenants = [self._codes[attempt.tenant_id] for attempt in attempts]
        self.tenant_codes: Ints = np.array(self.tenants, dtype=np.int64)
        self.num_gpus = [len(attempt.gpus) for attempt in attempts]
        self._sizes: Ints = np.array(self.num_gpus, dtype=np.int64)
        self._started_ms: Ints = np.array([attempt.started_ms for attempt in attempts], dtype=np.int64)
        self._is_stopping: Flags = np.array([attempt.is_stopping for attempt in attempts], dtype=np.bool_)
        self._tier_names = sorted({attempt.tier for attempt in attempts})
        tiers = {name: code for code, name in enumerate(self._tier_names)}
        self._tier_codes: Ints = np.array([tiers[attempt.tier] for attempt in attempts], dtype=np.int64)
        self.elastic = [
            index
            for index, attempt in enumerate(attempts)
            if attempt.elastic is not None and len(attempt.elastic.parts) > attempt.elastic.min_nodes
        ]

    def longest_notice_s(self, request: Request, claim: Claim | None = None) -> float | None:
        """Return the longest notice of attempts that the request may reclaim; None if it may reclaim none."""
        own = self._policy.tier(request.tier)
        notices = [tier.notice_s for tier in self._policy.tiers.values() if tier.priority < own.priority]
        notices += [] if claim is None else [own.notice_s]
        return max((notice for notice in notices if notice is not None), default=None)

    def free_from_ms(self, request: Request, claim: Claim | None) -> Ints:
        """Return for each attempt the time from which it may be a victim of the request; never, for most."""
        after_ms = np.array([self._min_run_ms(name, request) for name in self._tier_names], dtype=np.int64)
        moments = after_ms[self._tier_codes]
        moments = np.where(moments < NEVER_MS, self._started_ms + moments % NEVER_MS, NEVER_MS)
        if claim is not None:
            lent = [index for index, attempt in enumerate(self._attempts) if claim.reaches(attempt)]
            moments[lent] = self._started_ms[lent] + int(self._policy.tier(request.tier).min_run_s * 1000)
        moments[self._is_stopping] = NEVER_MS
        moments[list(self._notified - self.still_open)] = NEVER_MS
        return moments

    def allowance_by_code(self) -> dict[int, float]:
        """Return how many GPUs each tenant may still lose (I9)."""
        return {code: self.allowance[tenant] for tenant, code in self._codes.items()}

    def is_within_cap(self) -> Flags:
        """Return for each attempt whether it alone is no more than its tenant may still lose."""
        allowed = np.array(list(self.allowance_by_code().values()), dtype=np.float64)
        is_within: Flags = self._sizes <= allowed[self.tenant_codes]
        return is_within

    def loses(self, tenant_id: TenantId, num_gpus: int) -> None:
        self.allowance[tenant_id] -= num_gpus

    def _min_run_ms(self, tier_name: str, request: Request) -> int:
        """Return how long an attempt of this tier must have run to be a victim of the request.

        It is never one if no rule reclaims the tier for the request (I7).
        """
        tier = self._policy.tiers.get(tier_name)
        if tier is None or tier.notice_s is None or tier.priority >= self._policy.tier(request.tier).priority:
            return NEVER_MS
        return int(tier.min_run_s * 1000)

    def _cost(self, attempt: RunningAttempt) -> float:
        """Return the GPU-seconds lost: since the newest durable checkpoint, and to start again."""
        saved_ms = max(attempt.started_ms, attempt.saved_ms or attempt.started_ms)
        unsaved_s = max(self._now_ms - saved_ms, 0) / 1000
        return len(attempt.gpus) * (unsaved_s + self._policy.reclaim.restart_cost_s)
