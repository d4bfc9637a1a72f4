"""The answer for one pending job: why it is pending, the jobs ahead, its start range, and changes that start it now."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from muster.domain.gpu.levels import FLEET_LEVEL
from muster.domain.ids import GpuUuid, JobId
from muster.domain.job.wait_reasons import WaitReason
from scheduler.fleet.maintenance_start import maintenance_start_of
from scheduler.fleet.topology import FleetState, Ints
from scheduler.forecast.queue_snapshot import QueueSnapshot
from scheduler.forecast.start_range import StartForecast
from scheduler.model import FirmStart, Hold, Plan, Question, StartRange, Verdict, WaitingJob
from scheduler.queue.order import LEAST_RUN_S
from scheduler.quota.tenancy import Holdings, Quota
from scheduler.solve.elastic import nodes_of, nodes_within
from scheduler.solve.solver import Request, most_nodes, place, request_of

TYPING_S: Final = 60.0
"""Margin on an advised wall time: it still suffices so long after the answer."""

_NONE: Final[Ints] = np.zeros(0, dtype=np.int64)

ChangeField = Literal[
    "wall_time_s",
    "topology.required",
    "node_labels.without",
    "tier",
    "shape.nodes",
    "quota.ceiling_gpus",
    "quota.borrowable_gpus",
    "quota_above.ceiling_gpus",
    "quota_above.borrowable_gpus",
    "fleet.nodes",
]


@dataclass(frozen=True, slots=True)
class Change:
    """A change by which the job would start at once: ``field`` of the job, or of a quota, set to ``value``.

    ``topology.required``: a wider level than it requires, ``FLEET_LEVEL`` where it may require none.
    ``node_labels.without``: without its demand on that label. ``quota_above``: of the tenant above its own that binds.
    ``fleet.nodes``: with so many more idle hosts of its cohort, which its labels admit, in one domain of its level.
    """

    field: ChangeField
    value: int | float | str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one pending job.

    ``ahead``: the jobs before it, in order; ``gpus_ahead``: the GPUs that they need at least. ``starts``: None if
    unknown. ``changes``: in the order in which they were tried. ``firm_start``: then ``starts`` ends with it.
    """

    verdict: Verdict
    ahead: tuple[WaitingJob, ...]
    gpus_ahead: int
    starts: StartRange | None
    changes: tuple[Change, ...]
    firm_start: FirmStart | None = None


def answer(
    state: FleetState,
    question: Question,
    decided: Plan,
    job: WaitingJob,
    grace_s: float,
    forecast: StartForecast | None = None,
) -> Answer:
    """Return the answer for ``job``, which is pending after ``decided``.

    ``state``: as ``decided`` left it. ``grace_s``: the time after its wall time until its GPUs are free. ``forecast``:
    the start forecasts of this state and plan, if an earlier answer has computed them.
    """
    forecast = forecast or StartForecast(state, question, decided)
    number = forecast.line.number_of[job.job_id]
    starts = forecast.start_range(job.job_id)
    holdings = _with_kept(question, decided, job, forecast)
    changes = _Advice(question, state, job, decided, grace_s, holdings, forecast).changes()
    line, told = forecast.line, decided.waiting[number]
    starts = _by_firm_start(starts, told.firm_start, question.workload.now_ms)
    return Answer(told.verdict, line.jobs[:number], line.gpus_before[number], starts, tuple(changes), told.firm_start)


def _by_firm_start(starts: StartRange | None, firm_start: FirmStart | None, now_ms: int) -> StartRange | None:
    """Return the range, which ends with the firm start at the latest."""
    if firm_start is None:
        return starts
    if starts is None:
        return StartRange(now_ms, firm_start.latest_ms)
    known_ms = firm_start.latest_ms if starts.latest_ms is None else min(starts.latest_ms, firm_start.latest_ms)
    return StartRange(min(starts.earliest_ms, known_ms), known_ms)


def _with_kept(question: Question, decided: Plan, job: WaitingJob, forecast: StartForecast) -> Holdings:
    """Return the tenants' GPUs with the quota that is kept for other pending jobs, which will get GPUs."""
    kept = {item.job_id: len(item.gpus) for item in question.workload.holds}
    standing = (reclaim.beneficiary for reclaim in question.workload.reclaims)
    for beneficiary in (*standing, *(reclaim.beneficiary for reclaim in decided.reclaims)):
        number = forecast.line.number_of.get(beneficiary)
        if number is not None:
            kept[beneficiary] = forecast.line.jobs[number].fewest_gpus
    for over in (job.job_id, *(lapse.beneficiary for lapse in decided.lapses)):
        kept.pop(over, None)
    holdings = forecast.holdings.copy() if kept else forecast.holdings
    for job_id, num_gpus in kept.items():
        number = forecast.line.number_of.get(job_id)
        if number is not None:
            holdings.keep(forecast.line.jobs[number].tenant_id, forecast.line.jobs[number].tier, num_gpus)
    return holdings


@dataclass(frozen=True, slots=True)
class _Advice:
    """The search for changes that would start the job at once. ``state``: as the plan left it."""

    question: Question
    state: FleetState
    job: WaitingJob
    decided: Plan
    grace_s: float
    holdings: Holdings
    forecast: StartForecast

    @property
    def line(self) -> QueueSnapshot:
        return self.forecast.line

    def changes(self) -> list[Change]:
        """Return the changes, each sufficient by itself, the cheapest first.

        The order: a wall time, a wider level, a label less, another tier, fewer hosts, a higher quota, more hosts.
        """
        if self.job.tier not in self.question.policy.tiers:
            return []  # the policy has changed since the job was found possible
        own = self._let_go([*_hold_for(self.job.job_id, self.question, self.decided)])
        if self._is_quota_kept():
            found = [*self._wall_time_before_others(), *self._tiers()]
        else:
            found = [*self._wall_times(), *self._levels(), *self._labels(), *self._tiers(), *self._sizes()]
            found += [*self._quotas(), *self._more_hosts()]
        self.state.take(own)
        return found

    def _let_go(self, uuids: Collection[GpuUuid]) -> Ints:
        """Free the idle ones of ``uuids``, and return their indices."""
        gpus = np.unique(self.state.layout.gpu_indices(uuids))
        placed = (
            {uuid for item in self.decided.placements for _, part in item.parts for uuid in part} if len(gpus) else ()
        )
        is_busy = self.state.was_assigned.copy()
        is_busy[self.state.layout.gpu_indices(placed)] = True
        idle = gpus[~is_busy[gpus] & ~self.state.is_free[gpus]]
        self.state.give(idle)
        return idle

    def _may_start(self, job: WaitingJob) -> bool:
        if nodes_within(job, self.holdings) < job.fewest_nodes:
            return False
        return self._fits(job)

    def _fits(self, job: WaitingJob) -> bool:
        is_reclaimable = self.question.policy.tier(job.tier).notice_s is not None
        return place(self.state, self._request(job, is_reclaimable=is_reclaimable).at_least()) is not None

    def _request(self, job: WaitingJob, *, is_reclaimable: bool = False) -> Request:
        closing_ms = maintenance_start_of(self.state, job, self.question.policy, self.question.workload.now_ms)
        return request_of(job, is_reclaimable=is_reclaimable, maintenance_start_ms=closing_ms)

    def _wall_times(self) -> Iterator[Change]:
        """Yield the longest wall time with which it can run on another job's hold; its grace comes after it."""
        for held, gpus in reversed(_first_there(self.decided.holds)):
            if held.job_id == self.job.job_id:
                continue
            idle = self._let_go(gpus)
            fits = self._may_start(self.job)
            self.state.take(idle)
            wall_time_s = (held.until_ms - self.question.workload.now_ms) / 1000 - self.grace_s - TYPING_S
            if fits and wall_time_s >= LEAST_RUN_S:
                yield Change("wall_time_s", float(int(wall_time_s)))
                return
        yield from self._wall_time_before_work()

    def _wall_time_before_work(self) -> Iterator[Change]:
        """Yield the longest wall time with which it ends before a node closes for planned work."""
        now_ms = self.question.workload.now_ms
        for closing_ms in reversed(self.state.closings_ms):
            longest_s = (closing_ms - now_ms) / 1000 - TYPING_S
            if longest_s - self.grace_s < LEAST_RUN_S:
                return
            if self._may_start(replace(self.job, expected_s=longest_s)):
                yield Change("wall_time_s", float(int(longest_s - self.grace_s)))
                return

    def _is_quota_kept(self) -> bool:
        """Return whether its quota suffices now, but is kept for others that start before it would have ended."""
        binding = self.decided.waiting[self.line.number_of[self.job.job_id]].verdict.binding
        is_quota = binding in {WaitReason.QUOTA, WaitReason.QUOTA_ABOVE, WaitReason.BORROWING}
        return is_quota and nodes_within(self.job, self.holdings) >= self.job.fewest_nodes

    def _wall_time_before_others(self) -> Iterator[Change]:
        """Yield the longest wall time with which it ends before any job starts that shares a limit with it."""
        limits = {limit.tenant_id for limit in self.holdings.limits(self.job.tenant_id, self.job.tier)}
        starts_ms = []
        for held in self.decided.holds:
            other = self.line.jobs[self.line.number_of[held.job_id]]
            if other.tier == self.job.tier and not limits.isdisjoint(self.holdings.line(other.tenant_id)):
                starts_ms.append(held.until_ms)
        if starts_ms and self._fits(self.job):
            wall_time_s = (min(starts_ms) - self.question.workload.now_ms) / 1000 - self.grace_s - TYPING_S
            if wall_time_s >= LEAST_RUN_S:
                yield Change("wall_time_s", float(int(wall_time_s)))

    def _levels(self) -> Iterator[Change]:
        """Yield the narrowest of the wider levels in whose domains it fits."""
        layout, required = self.state.for_tier(self.job.tier).layout, self.job.required_level
        level = None if required is None else layout.level(required)
        if level is None or not self._has_room(replace(self.job, required_level=None)):
            return
        for name in reversed(layout.levels[:level]):
            if self._may_start(replace(self.job, required_level=None if name == FLEET_LEVEL else name)):
                yield Change("topology.required", name)
                return

    def _labels(self) -> Iterator[Change]:
        """Yield each label that is the only reason why it has no place."""
        rule = self.job.rule
        if not rule.labels.of_job or not self._has_room(
            replace(self.job, rule=replace(rule, labels=rule.labels.of_tenant))
        ):
            return
        for name in rule.labels.names:
            if self._may_start(replace(self.job, rule=replace(rule, labels=rule.labels.without(name)))):
                yield Change("node_labels.without", name)

    def _has_room(self, job: WaitingJob) -> bool:
        """Return whether a count of free hosts suffices."""
        request = self._request(job).at_least()
        return most_nodes(self.state, request) >= request.nodes

    def _tiers(self) -> Iterator[Change]:
        """Yield the tiers in which it would start, the lowest priority first, since it costs least."""
        tiers = self.question.policy.tiers
        for name in sorted(tiers, key=lambda name: (tiers[name].priority, name)):
            if name != self.job.tier and self._may_start_in(name):
                yield Change("tier", name)

    def _may_start_in(self, tier: str) -> bool:
        """Return whether it may start in the tier, where it may take this plan's new holds for lower tiers."""
        wanted = replace(self.job, tier=tier)
        if self._may_start(wanted):
            return True
        behind = self._hold_behind(self.question.policy.tiers[tier].priority)
        idle = self._let_go(behind) if behind else _NONE
        fits = len(idle) > 0 and self._may_start(wanted)
        self.state.take(idle)
        return fits

    def _hold_behind(self, priority: int) -> set[GpuUuid]:
        """Return the GPUs that this plan holds only for jobs of lower priority, without holds from before."""
        line, workload = self.forecast.line, self.question.workload
        behind, others = set[GpuUuid](), set[GpuUuid]()
        for job_id, gpus in _holds_in(self.decided):
            of_tier = self.question.policy.tiers.get(line.jobs[line.number_of[job_id]].tier)
            (others if of_tier is None or of_tier.priority >= priority else behind).update(gpus)
        promised = [*(one.gpus for one in workload.holds), *(one.hold for one in workload.reclaims)]
        return behind.difference(others, *promised) if behind else behind

    def _sizes(self) -> Iterator[Change]:
        """Yield the most hosts that may start at once, if the job is of one size."""
        if self.job.min_nodes is not None:
            return
        within = nodes_within(self.job, self.holdings)
        nodes = min(self.job.nodes - 1, within, most_nodes(self.state, self._request(self.job)))
        nodes -= nodes % self.job.rule.step
        if nodes > 0 and self._may_start(replace(self.job, nodes=nodes)):
            yield Change("shape.nodes", nodes)

    def _quotas(self) -> Iterator[Change]:
        """Yield the least sufficient quota, if one quota alone keeps the job pending. An operator sets it."""
        limits = self.holdings.limits(self.job.tenant_id, self.job.tier)
        binding = [limit for limit in limits if limit.left < self.job.fewest_gpus]
        if len(binding) != 1 or not self._fits(self.job):
            return
        now = self.holdings.limit_now(self.job.tenant_id, self.job.tier)
        if now is not None and now.is_firm:
            return  # others' guarantees would still keep it pending
        (limit,) = binding
        needed = limit.most - limit.left + self.job.fewest_gpus
        quota = self.question.workload.tenancy.quotas[limit.tenant_id, self.job.tier]
        is_own = limit.tenant_id == self.job.tenant_id
        if limit.is_ceiling and _allows(replace(quota, ceiling=None), needed):
            yield Change("quota.ceiling_gpus" if is_own else "quota_above.ceiling_gpus", needed)
        elif not limit.is_ceiling and _allows(replace(quota, borrowable=None), needed):
            borrowed = needed - quota.guaranteed
            yield Change("quota.borrowable_gpus" if is_own else "quota_above.borrowable_gpus", borrowed)

    def _more_hosts(self) -> Iterator[Change]:
        """Yield how many hosts are missing, also of hosts that no other tenant is guaranteed.

        Nothing is yielded if enough idle hosts of its cohort are in a domain of its level, or no host is large enough.
        """
        if nodes_of(self.job, self.holdings.limit(self.job.tenant_id, self.job.tier)) < self.job.fewest_nodes:
            return
        request = request_of(self.job).at_least()
        layout = self.state.for_tier(self.job.tier).layout
        if int(layout.cell_size.max(initial=0)) < request.gpus_per_node:
            return
        is_level = request.required is None or self.state.layout.level(request.required) is not None
        missing = request.nodes - min(most_nodes(self.state, request), nodes_within(self.job, self.holdings))
        if missing > 0 and is_level:
            yield Change("fleet.nodes", missing)


def _allows(quota: Quota, num_gpus: int) -> bool:
    return quota.most is None or quota.most >= num_gpus


def _holds_in(decided: Plan) -> Iterator[tuple[JobId, Sequence[GpuUuid]]]:
    """Yield the jobs for which this plan holds GPUs, each with the GPUs."""
    yield from {reclaim.beneficiary: reclaim.hold for reclaim in decided.reclaims}.items()
    for held in decided.holds:
        yield held.job_id, held.gpus


def _hold_for(job_id: JobId, question: Question, decided: Plan) -> Iterator[GpuUuid]:
    """Yield the GPUs that this plan or an earlier one holds for the job.

    Each reclaim for a job names all GPUs that are held for it, so the first one suffices.
    """
    for reclaims in (decided.reclaims, question.workload.reclaims):
        yield from next((reclaim.hold for reclaim in reclaims if reclaim.beneficiary == job_id), ())
    for own in question.workload.holds:
        if own.job_id == job_id:
            yield from own.gpus
    for held, gpus in _first_there(decided.holds):
        if held.job_id == job_id:
            yield from gpus


def _first_there(holds: Sequence[Hold]) -> list[tuple[Hold, list[GpuUuid]]]:
    """Return the holds by time, each with the GPUs on which no other hold starts before."""
    found, taken = [], set[GpuUuid]()
    for held in sorted(holds, key=lambda held: held.until_ms):
        found.append((held, [uuid for uuid in held.gpus if uuid not in taken]))
        taken.update(held.gpus)
    return found
