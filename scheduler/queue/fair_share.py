"""Fair shares within a tier: first the guarantees, then the rest by weight, down the tree of tenants.

The rest is divided by water-filling (weighted max-min fairness; Bertsekas and Gallager, "Data Networks", 1992, section
6.5.2): each tenant gets GPUs in proportion to its weight and no more than it requests, so that the others get the rest
of its share. A tenant that used much recently weighs less, by 2^(-usage ÷ share) (Slurm's multifactor priority,
doc/html/classic_fair_share.html), with usage and share as fractions among the tenants under the same one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import Final

from muster.domain.ids import JobId, TenantId
from muster.domain.policy.document import Policy
from scheduler.fleet.topology import FleetState
from scheduler.model import RunningAttempt, Turn, WaitingJob
from scheduler.quota.tenancy import Holdings, Tenancy

ROUNDING_GPUS: Final = 1e-6

MOST_HALVINGS: Final = 64.0
"""The most halvings of a weight by past usage: practically nothing against the others, and yet above 0."""


def water_filled(pool: float, weights: Sequence[float], caps: Sequence[float]) -> list[float]:
    """Return ``pool`` in proportion to ``weights``, each above 0, with no share above its cap."""
    shares = [0.0] * len(caps)
    in_order = sorted(range(len(caps)), key=lambda index: caps[index] / weights[index])
    # Summed from the last, since a remainder after subtraction may be 0 against a weight that is far smaller.
    left = list(accumulate(weights[index] for index in reversed(in_order)))[::-1]
    for index, total in zip(in_order, left, strict=True):
        shares[index] = min(caps[index], max(pool, 0.0) * weights[index] / total)
        pool -= shares[index]
    return shares


def entitlements(tenancy: Tenancy, tier: str, pool: float, wanted: Mapping[TenantId, float]) -> dict[TenantId, float]:
    """Return the GPUs of ``pool`` that each tenant is entitled to now, with all tenants below it.

    ``wanted``: what each has and requests by itself. A tenant that requests nothing is entitled to nothing: the others
    get its share.
    """
    return _Filling(tenancy, tier, wanted).filled(pool)


class _Filling:
    def __init__(self, tenancy: Tenancy, tier: str, wanted: Mapping[TenantId, float]) -> None:
        self._tenancy, self._tier = tenancy, tier
        self._own = {tenant: number for tenant, number in wanted.items() if number > 0}
        self._guarantees = tenancy.guarantees(tier)
        self._teams: dict[TenantId | None, list[TenantId]] = defaultdict(list)
        self._used: dict[TenantId, float] = defaultdict(float)
        for tenant in sorted({above for own in self._own for above in tenancy.line(own)}):
            self._teams[tenancy.member(tenant).parent].append(tenant)
        for (tenant, name), used in tenancy.used.items():
            for above in tenancy.line(tenant) if name == tier else ():
                self._used[above] += used
        self._wanted: dict[TenantId, float] = {}
        self._found: dict[TenantId, float] = {}

    def filled(self, pool: float) -> dict[TenantId, float]:
        for tenant in self._teams[None]:
            self._want(tenant)
        self._pour(None, pool)
        return self._found

    def _want(self, tenant: TenantId) -> float:
        """Return what the tenant and its teams request, up to its limit."""
        asked = self._own.get(tenant, 0.0) + sum(self._want(team) for team in self._teams[tenant])
        quota = self._tenancy.quotas.get((tenant, self._tier))
        most = None if quota is None else quota.most
        self._wanted[tenant] = asked if most is None else min(asked, most)
        return self._wanted[tenant]

    def _pour(self, above: TenantId | None, pool: float) -> None:
        teams = self._teams[above]
        own = 0.0 if above is None or not teams else self._own.get(above, 0.0)
        wanted = [*(self._wanted[team] for team in teams), *([own] if own else [])]
        sure = [min(asked, self._guarantees.get(team, 0)) for team, asked in zip(teams, wanted, strict=False)]
        sure += [0.0] * (len(wanted) - len(sure))
        first = [index for index, number in enumerate(sure) if number > 0]
        promised = water_filled(pool, [sure[index] for index in first], [sure[index] for index in first])
        base = dict(zip(first, promised, strict=True))
        rest = [asked - base.get(index, 0.0) for index, asked in enumerate(wanted)]
        shares = water_filled(pool - sum(promised), self._weights(teams, len(wanted)), rest)
        for index, team in enumerate(teams):
            self._found[team] = base.get(index, 0.0) + shares[index]
            self._pour(team, self._found[team])

    def _weights(self, teams: Sequence[TenantId], number: int) -> list[float]:
        """Return the weights by recent usage; a department's own jobs, which are no team, come last and weigh 1."""
        weights = [self._tenancy.member(team).weight for team in teams]
        all_used, all_weights = sum(self._used[team] for team in teams), sum(weights)
        if all_used > 0:
            weights = [
                weight * 2.0 ** -min((self._used[team] / all_used) / (weight / all_weights), MOST_HALVINGS)
                for team, weight in zip(teams, weights, strict=True)
            ]
        return [*weights, *([1.0] * (number - len(weights)))]


@dataclass(frozen=True, slots=True)
class _Tier:
    guarantees: Mapping[TenantId, int]
    entitled: Mapping[TenantId, float]


class FairShares:
    """Turns of jobs, by the GPUs of the tenant and the tenants above it against their entitlements.

    ``holdings`` is the cycle's own: placements count at once.
    """

    def __init__(
        self,
        state: FleetState,
        policy: Policy,
        running: Iterable[RunningAttempt],
        queue: Sequence[WaitingJob],
        holdings: Holdings,
    ) -> None:
        self._holdings, self._num_changes = holdings, holdings.num_changes
        self._tiers: dict[str, _Tier] = {}
        self._known: dict[tuple[TenantId, str], tuple[float, float]] = {}
        if not holdings.tenancy.quotas and len({job.tenant_id for job in queue}) < 2:
            return  # there is no other tenant to share with
        attempts = list(running)
        for tier in sorted({job.tier for job in queue if job.tier in policy.tiers}):
            waiting = [job for job in queue if job.tier == tier]
            guarantees = holdings.tenancy.guarantees(tier)
            if len({job.tenant_id for job in waiting}) < 2 and not guarantees:
                continue
            wanted: dict[TenantId, float] = defaultdict(float)
            for job in waiting:
                wanted[job.tenant_id] += job.nodes * job.gpus_per_node
            for attempt in attempts:
                if attempt.tier == tier:
                    wanted[attempt.tenant_id] += len(attempt.gpus)
            pool = _pool(state, policy, tier, attempts)
            self._tiers[tier] = _Tier(guarantees, entitlements(holdings.tenancy, tier, pool, wanted))

    def is_guaranteed(self, job: WaitingJob) -> bool:
        """Return whether its tenant, or one above it, stays within its guarantee with the job."""
        return job.tier in self._tiers and job.fewest_gpus <= self._standing(job)[0]

    def over_gpus(self, job: WaitingJob) -> float | None:
        """Return the GPUs that its tenant, or one above it, has beyond its share.

        It is 0 if it has exactly its share, None if less. A gang is not divided: a tenant under its share may exceed it
        by less than one gang.
        """
        over = self._standing(job)[1] if job.tier in self._tiers else -1.0
        return None if over < -ROUNDING_GPUS else max(over, 0.0)

    def _standing(self, job: WaitingJob) -> tuple[float, float]:
        """Return the largest rest of a guarantee in its tenant's line, and the largest excess over a share in it."""
        if self._num_changes != self._holdings.num_changes:
            self._known.clear()
            self._num_changes = self._holdings.num_changes
        key = job.tenant_id, job.tier
        if key not in self._known:
            shares = self._tiers[job.tier]
            held = [(above, self._holdings.of(above, job.tier)) for above in self._holdings.line(job.tenant_id)]
            left = max(shares.guarantees.get(above, 0) - number for above, number in held)
            self._known[key] = left, max(number - shares.entitled.get(above, 0.0) for above, number in held)
        return self._known[key]


def _pool(state: FleetState, policy: Policy, tier: str, running: Iterable[RunningAttempt]) -> int:
    """Return the GPUs that the tier's jobs could have: without the ones of tiers that are not reclaimed for it."""
    priority = policy.tier(tier).priority

    def stays(other: str) -> bool:
        rules = policy.tiers.get(other)
        return other != tier and (rules is None or rules.notice_s is None or rules.priority >= priority)

    return int(state.tier(tier).admitted.sum()) - sum(len(one.gpus) for one in running if stays(one.tier))


def in_turns(
    ordered: Sequence[WaitingJob], shares: FairShares, policy: Policy, is_passed: Callable[[WaitingJob], bool]
) -> Iterator[tuple[WaitingJob, Turn]]:
    """Yield ``ordered`` within each tier by turns, each computed when it comes, with the placements by then.

    Jobs that ran before go first, as in ``ordered``: they have saved work.
    """
    for has_run, group in _groups(ordered, policy):
        if has_run:
            yield from ((job, Turn.UNDER) for job in group)
            continue
        left = group
        for turn, is_its_turn in (
            (Turn.GUARANTEED, shares.is_guaranteed),
            (Turn.PASSED, is_passed),
            (Turn.UNDER, lambda job: shares.over_gpus(job) is None),
            (Turn.OVER, lambda _: True),
        ):
            rest: list[WaitingJob] = []
            for job in left:
                if is_its_turn(job):
                    yield job, turn
                else:
                    rest.append(job)
            left = rest


def by_turns(ordered: Sequence[WaitingJob], turns: Mapping[JobId, Turn], policy: Policy) -> list[WaitingJob]:
    """Return ``ordered`` as the plan that gave these ``turns`` tried them; a job without a turn counts as ``UNDER``."""
    found: list[WaitingJob] = []
    for has_run, group in _groups(ordered, policy):
        found += group if has_run else sorted(group, key=lambda job: turns.get(job.job_id, Turn.UNDER))
    return found


def _groups(ordered: Sequence[WaitingJob], policy: Policy) -> Iterator[tuple[bool, list[WaitingJob]]]:
    """Yield for each tier the jobs that ran before, and the others."""

    def rank(job: WaitingJob) -> tuple[int, bool]:
        return (policy.tiers[job.tier].priority if job.tier in policy.tiers else -1), bool(job.keep)

    for (_, has_run), together in groupby(ordered, key=rank):
        yield has_run, list(together)
