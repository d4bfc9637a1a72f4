"""Reclaim as a contract: who must give GPUs back, to whom, with what notice, and never more than is needed.

Nothing is evicted unless one domain becomes sufficient by it. Only reclaimable tiers of lower priority give (I7), no
attempt before its tier's minimum run time, no tenant more than its cap in a window (I9). What ends soon in any case is
waited for. What is freed is held for its beneficiary, and a reclaim that is needed no more is withdrawn. Within a
reclaimable tier a tenant takes back what it has lent (``scheduler.lending``).
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from muster.domain.ids import AttemptId, JobId
from muster.domain.policy import Policy
from scheduler.closing import starting
from scheduler.endings import CLEANING_MS, Endings
from scheduler.givers import Givers
from scheduler.lending import Claim, Lending
from scheduler.letting_off import minimal
from scheduler.model import Parts, Reclaim, RunnerUp, Workload
from scheduler.outcomes import Coming, Notified, Obstacle, Outcome, Refused
from scheduler.promises import Promises
from scheduler.recovery import replan
from scheduler.replacing import Missing
from scheduler.shrinking import Surplus, cheapest_shrink, kept_beside, surplus_of, within_cap
from scheduler.solver import Chosen, Request, most_nodes, most_unrounded, place
from scheduler.topology import NEVER_MS, Flags, FleetState, Ints
from scheduler.victims import Candidates, Cover, cheapest_covers


def _stays(workload: Workload) -> dict[AttemptId, int]:
    """With how many GPUs the jobs of attempts go on that give some of theirs, or that change their size."""
    held = {own.job_id: len(own.gpus) for own in workload.holds}
    stays = {one.attempt_id: held[one.job_id] for one in workload.running if one.job_id in held}
    return stays | {reclaim.victim: len(reclaim.keeps) for reclaim in workload.reclaims if reclaim.keeps}


class Reclaimer:
    """Chooses victims, one beneficiary after another, and remembers what it has chosen in this cycle."""

    def __init__(self, state: FleetState, policy: Policy, workload: Workload) -> None:
        self._state, self._policy, self._now_ms = state, policy, workload.now_ms
        self._attempts = sorted(workload.running, key=lambda attempt: attempt.attempt_id)
        indices = {attempt.attempt_id: index for index, attempt in enumerate(self._attempts)}
        self.endings = Endings(state, policy, self._attempts, workload)
        self._owner, self._ends = self.endings.owner, self.endings.ends_ms
        self._notified: set[int] = set()
        self.lending = Lending(workload.tenancy, policy, self._attempts, _stays(workload))
        for reclaim in workload.reclaims:
            if reclaim.victim in indices:
                self._notify(indices[reclaim.victim], reclaim.deadline_ms, len(reclaim.keeps))
        self._givers = Givers(self._attempts, self._notified, workload, policy)
        self.promises = Promises(state, workload.reclaims, indices)
        for reclaim in workload.reclaims:
            if reclaim.victim in indices:
                self.promises.mask[state.layout.gpu_indices(reclaim.keeps)] = True
        self.reclaims: list[Reclaim] = []

    def still_suffices(self, job_id: JobId, request: Request, run_s: float | None = None, *, last: Parts = ()) -> bool:
        """Whether the gang will fit once every victim has let go; asked after the job's hold was lifted.

        ``run_s``: what it is believed to take, counted from the last deadline on. ``last``: of one that is to go on
        with what it kept of that.
        """
        held = self.promises.held(job_id)
        starts_ms = max(self.promises.deadline_ms(job_id), self._now_ms)
        request = starting(self._state, request, starts_ms, run_s)
        notice_ms = int((self._givers.longest_notice_s(request) or 0.0) * 1000)
        until_ms = max(self.promises.deadline_ms(job_id), self._now_ms + notice_ms)
        is_coming: Flags = np.append(self._ends <= until_ms, True)[self._owner[held]]
        freed = held[is_coming & ~self._state.is_free[held]]
        return self._goes_on(freed, request, last) if last else self.with_freed(freed, request) is not None

    def hold_standing(self, waiting: Collection[JobId]) -> None:
        """Hold what is promised to jobs that wait; withdraw what is promised to others."""
        for job_id in self.promises.jobs():
            if job_id in waiting:
                self.promises.hold(job_id, self.promises.held(job_id))
            else:
                self.withdraw(job_id, "the job that it was for waits no more")

    def withdraw(self, job_id: JobId, why: str) -> None:
        """The victims go on; none of them is chosen again in this cycle."""
        spared = {withdrawal.victim for withdrawal in self.promises.withdraw(job_id, why)}
        for index, attempt in enumerate(self._attempts):
            if attempt.attempt_id in spared:
                self.endings.go_on(index)

    def choose(
        self,
        job_id: JobId,
        request: Request,
        claim: Claim | None = None,
        *,
        is_beyond: bool = False,
        run_s: float | None = None,
    ) -> Outcome:
        """Reclaim for a gang that does not fit now: ``reclaims`` grows, or the outcome says why not.

        ``claim``: of its tenant on what it has lent; ``is_beyond``: it has none, since with the job it would hold more
        than it is guaranteed. ``run_s``: what it is believed to take; nobody counts on a victim that leaves before its
        deadline, so it is to be over before hosts close even if it starts only then.
        """
        choice = self._choice(request, claim, is_beyond=is_beyond, run_s=run_s)
        return self._commit(job_id, choice.target.gpus, choice) if isinstance(choice, _Choice) else choice

    def replace_hosts(
        self,
        job_id: JobId,
        request: Request,
        missing: Missing,
        last: Parts,
        claim: Claim | None = None,
        *,
        run_s: float | None = None,
    ) -> Outcome:
        """Reclaim for hosts in place of those that a gang lost of its ``last``, which with these goes on, ranks kept.

        What it kept is held for it with them.
        """
        choice = self._choice(missing.request, claim, run_s=run_s)
        if not isinstance(choice, _Choice):
            return choice
        target = choice.target.gpus
        latest_ms = self._now_ms + int((self._givers.longest_notice_s(request, claim) or 0.0) * 1000)
        then = starting(self._state, request, latest_ms, run_s)
        if not self._goes_on(target[~self._state.is_free[target]], then, last):
            return Refused()
        return self._commit(job_id, np.union1d(missing.kept, target), choice)

    def _goes_on(self, freed: Ints, request: Request, last: Parts) -> bool:
        """Whether it would with what it kept of ``last``, if ``freed`` were free as well."""
        freed = self._open_to(request, freed)
        self._state.give(freed)
        chosen = replan(self._state, request, last)
        self._state.take(freed)
        return chosen is not None

    def _choice(
        self, request: Request, claim: Claim | None, *, is_beyond: bool = False, run_s: float | None = None
    ) -> "_Choice | Coming | Refused":
        notice_s = self._givers.longest_notice_s(request, claim)
        if notice_s is None:
            return Refused(Obstacle.OWN_GUARANTEE if is_beyond else None)
        latest_ms = self._now_ms + int(notice_s * 1000)
        coming = self._open_to(request, self.coming(latest_ms))
        until_ms = self._comes_by_itself(request, coming, latest_ms, run_s)
        if until_ms is not None:
            return Coming(until_ms)
        request = starting(self._state, request, latest_ms, run_s)
        self._state.give(coming)
        choice = self._victims(request, claim)
        self._state.take(coming)
        return choice

    def told_apart_by(self, request: Request, claim: Claim | None, run_s: float) -> float | None:
        """Beside its request, by what reclaim may help a job where it does not help one with an equal request."""
        notice_s = self._givers.longest_notice_s(request, claim) if self._state.closings_ms else None
        if notice_s is None:
            return None
        is_same = starting(self._state, request, self._now_ms + int(notice_s * 1000), run_s) is request
        return None if is_same else run_s

    def _comes_by_itself(self, request: Request, coming: Ints, latest_ms: int, run_s: float | None) -> int | None:
        """When enough has come free without reclaim, by then at the latest; None: it does not, or hosts close first.

        ``coming``: what comes free until then.
        """
        first_ms = self._full_ms(request, coming)
        if first_ms is None:
            return None
        for at_ms in (max(first_ms, self._now_ms), latest_ms):
            then = starting(self._state, request, at_ms, run_s)
            until_ms = first_ms if then is request else self._full_ms(then, self.coming(at_ms))
            if until_ms is not None:
                return until_ms
        return None

    def _full_ms(self, request: Request, coming: Ints) -> int | None:
        """When its place has come free, of what comes free."""
        chosen = self.with_freed(coming, request)
        return None if chosen is None else self.endings.last_ms(chosen.gpus[~self._state.is_free[chosen.gpus]])

    def coming(self, until_ms: int, ends_ms: Ints | None = None) -> Ints:
        """Held GPUs that come free until then of their own, and are promised to nobody.

        ``ends_ms``: as ``Endings`` has them, known or believed; then what is being cleaned comes too.
        """
        if ends_ms is None:
            gpus = self.endings.coming(until_ms, self.endings.certain_ms())
        else:
            gpus = self.endings.coming(until_ms, ends_ms)
            if until_ms >= self._now_ms + CLEANING_MS:
                is_coming = np.zeros_like(self._state.is_free)
                is_coming[gpus] = is_coming[self.endings.cleaned()] = True
                gpus = np.flatnonzero(is_coming)
        return gpus[~self.promises.mask[gpus]]

    def _owners_if(self, is_victim: Flags, request: Request) -> Ints:
        """The owner of each GPU that would come to the request if these attempts let go, else -1."""
        admitted = self._state.tier(request.tier).admitted
        comes = np.append(is_victim, False)[self._owner] & admitted & ~self._state.is_free & ~self.promises.mask
        if not request.may_use_spares:
            comes &= ~self._state.is_spare
        return np.where(comes, self._owner, -1)

    def _open_to(self, request: Request, gpus: Ints) -> Ints:
        """Those of them that the request may have once they are free: a spare that is lent stays one."""
        return gpus if request.may_use_spares else gpus[~self._state.is_spare[gpus]]

    def with_freed(self, gpus: Ints, request: Request, state: FleetState | None = None) -> Chosen | None:
        """The placement on a hypothetical state in which ``gpus`` are free as well, as far as it may have them.

        ``state``: the fleet at another moment, with the same GPUs free.
        """
        gpus, state = self._open_to(request, gpus), state or self._state
        state.give(gpus)
        chosen = place(state, request)
        state.take(gpus)
        return chosen

    def _victims(self, request: Request, claim: Claim | None) -> "_Choice | Refused":
        """Whoever can do with less gives first, unless it costs too many times what whole victims would lose.

        On a state that has given what comes of its own.
        """
        free_from = self._givers.free_from_ms(request, claim)
        whole = self._whole_victims(request, free_from, claim)
        shrunk = self._shrunk(request, free_from, claim)
        if shrunk is None and isinstance(whole, Refused):
            return self._mixed(request, free_from, claim, whole) or whole
        if shrunk is None:
            return whole
        if isinstance(whole, Refused):
            return shrunk
        is_too_dear = shrunk.cost > whole.cost * self._policy.reclaim.shrink_cost_factor
        choice, other = (whole, shrunk) if is_too_dear else (shrunk, whole)
        return replace(choice, runner_up=self._next_best(choice, self._runner_up(other), whole.runner_up))

    def _next_best(self, choice: "_Choice", *others: RunnerUp | None) -> RunnerUp | None:
        """The cheapest of those that would take other victims."""
        own = {self._attempts[index].attempt_id for index in choice.victims}
        differing = (one for one in others if one is not None and set(one.victims) != own)
        return min(differing, key=lambda one: one.cost_gpu_s, default=None)

    def _shrunk(self, request: Request, free_from: Ints, claim: Claim | None) -> "_Choice | None":
        if not self._givers.elastic:
            return None
        owner = self._owners_if(free_from <= self._now_ms, request)
        offers = self._offers(owner, free_from)
        shrink = cheapest_shrink(self._state, request, offers, self._givers.allowance)
        if shrink is None:
            return None
        target = self.with_freed(shrink.gpus, request)
        if target is None:
            return None
        used = set(owner[target.gpus].tolist())
        victims = [victim for victim in shrink.victims if victim in used]
        if claim is not None and not claim.may_lose(victims, self._given_up(victims, target)):
            return None
        return _Choice(target, victims, float(sum(self._givers.costs[index] for index in victims)))

    def _offers(self, owner: Ints, free_from: Ints) -> list[Surplus]:
        """What elastic attempts could give now."""
        return [
            surplus_of(index, self._attempts[index], self._state.layout, owner, cost=float(self._givers.costs[index]))
            for index in self._givers.elastic
            if free_from[index] <= self._now_ms
        ]

    def _mixed(self, request: Request, free_from: Ints, claim: Claim | None, whole: Refused) -> "_Choice | None":
        """Elastic victims that give what they can spare, beside others that end: where caps or guarantees leave neither
        alone enough.
        """
        givers = self._givers
        if not givers.elastic or whole.obstacle not in {Obstacle.CAP, Obstacle.GUARANTEES}:
            return None
        may_give = givers.is_within_cap()
        may_give[givers.elastic] = True
        owner = self._owners_if(may_give & (free_from <= self._now_ms), request)
        owner, num_given = within_cap(owner, self._offers(owner, free_from), givers.allowance)
        num_gpus = [num_given.get(index, num) for index, num in enumerate(givers.num_gpus)]
        candidates = replace(self._candidates(owner, givers.allowance_by_code()), num_gpus=num_gpus)
        if claim is not None:
            candidates = replace(candidates, may_lose=partial(claim.may_lose, given=num_given))
        return self._covered(request, owner, candidates)

    def _covered(
        self, request: Request, owner: Ints, candidates: Candidates, claim: Claim | None = None
    ) -> "_Choice | None":
        """The cheapest of those who suffice together, and keep to the claim as they would be left."""
        rest = iter(cheapest_covers(self._state, request, candidates))
        for cover in rest:
            target, victims = minimal(self._state, cover, owner, request, self._attempts, self._givers.costs)
            if claim is None or claim.may_lose(victims, self._given_up(victims, target)):
                break
        else:
            return None
        next_best = next((other for other in rest if set(other.victims) != set(victims)), None)
        cost = float(sum(self._givers.costs[index] for index in victims))
        return _Choice(target, victims, cost, None if next_best is None else self._runner_up(next_best))

    def _given_up(self, victims: Sequence[int], target: Chosen) -> dict[int, int]:
        """GPUs that each gives for the target: all that it has, where it cannot go on with the rest."""
        held = frozenset([self._state.layout.uuids[gpu] for gpu in target.gpus.tolist()])
        attempts = {index: self._attempts[index] for index in victims}
        return {index: len(one.gpus) - len(kept_beside(one, held)) for index, one in attempts.items()}

    def _whole_victims(self, request: Request, free_from: Ints, claim: Claim | None) -> "_Choice | Refused":
        givers = self._givers
        owner = self._owners_if((free_from <= self._now_ms) & givers.is_within_cap(), request)
        candidates = self._candidates(owner, givers.allowance_by_code())
        lent = candidates if claim is None else replace(candidates, may_lose=claim.may_lose)
        choice = self._covered(request, owner, lent, claim)
        if choice is None and claim is not None and cheapest_covers(self._state, request, candidates):
            return Refused(Obstacle.GUARANTEES, num_gpus=self._num_given(free_from <= self._now_ms, request))
        return choice or self._refusal(free_from, request, claim)

    def _runner_up(self, cover: "Cover | _Choice") -> RunnerUp:
        return RunnerUp(tuple(self._attempts[index].attempt_id for index in cover.victims), cover.cost)

    def _refusal(self, free_from: Ints, request: Request, claim: Claim | None) -> Refused:
        """What keeps reclaim from helping now, though it may later."""
        may_give = free_from < NEVER_MS
        if not may_give.any():
            return Refused()
        if self._most_nodes_by(may_give, request) < request.nodes:
            return self._too_little(may_give, request)
        may_give_now = free_from <= self._now_ms
        if self._most_nodes_by(may_give_now, request) >= request.nodes:
            if claim is None or self._is_lent(free_from, request, claim):
                return Refused(Obstacle.CAP, num_gpus=self._num_over_caps(may_give_now, request))
            return Refused(Obstacle.GUARANTEES, num_gpus=self._num_given(may_give_now, request))
        moments = np.unique(free_from[may_give & (free_from > self._now_ms)]).tolist()

        def is_enough(at_ms: int) -> bool:
            return self._most_nodes_by(free_from <= at_ms, request) >= request.nodes

        until_ms = moments[bisect_left(moments, True, key=is_enough)]
        num_young = self._num_given(may_give & ~may_give_now, request)
        return Refused(Obstacle.MIN_RUN, until_ms, num_young, free_from_ms=free_from)

    def _num_given(self, is_victim: Flags, request: Request) -> int:
        """GPUs that would come to the request if these let go."""
        return int(np.count_nonzero(self._owners_if(is_victim, request) >= 0))

    def _num_over_caps(self, is_victim: Flags, request: Request) -> int:
        """Those of them that are more than their tenants may still lose."""
        owner = self._owners_if(is_victim, request)
        given = Counter(self._givers.tenants[index] for index in owner[owner >= 0].tolist())
        allowance = self._givers.allowance_by_code()
        return sum(max(num_gpus - int(max(allowance[code], 0)), 0) for code, num_gpus in given.items())

    def _is_lent(self, free_from: Ints, request: Request, claim: Claim) -> bool:
        """Whether what lenders may give would do if no cap bound them: else the cap's end changes nothing for it."""
        owner = self._owners_if(free_from <= self._now_ms, request)
        candidates = self._candidates(owner, dict.fromkeys(self._givers.allowance_by_code(), math.inf))
        return bool(cheapest_covers(self._state, request, replace(candidates, may_lose=claim.may_lose)))

    def _candidates(self, owner: Ints, allowance: Mapping[int, float]) -> Candidates:
        return Candidates(owner, self._givers.costs, self._givers.num_gpus, self._givers.tenants, allowance)

    def _too_little(self, may_give: Flags, request: Request) -> Refused:
        anytime = replace(request, closing_ms=None)
        most = self._most_nodes_by(may_give, anytime)
        if most >= request.nodes:
            return Refused(Obstacle.CLOSING)
        unrounded = most_unrounded(self._state, anytime, self._counts_by(may_give, request))
        num_gpus = self._num_given(may_give, request)
        return Refused(Obstacle.TOO_LITTLE, num_gpus=num_gpus, most_nodes=most, most_unrounded=unrounded)

    def _most_nodes_by(self, is_victim: Flags, request: Request) -> int:
        """For so many hosts of one home there would be room if these let go."""
        return most_nodes(self._state, request, self._counts_by(is_victim, request))

    def _counts_by(self, is_victim: Flags, request: Request) -> Ints:
        """Usable GPUs of each cell if these let go."""
        state = self._state.for_tier(request.tier)
        gpus = np.flatnonzero(self._owners_if(is_victim, request) >= 0)
        freed = np.bincount(state.layout.cell_of_gpu[gpus], minlength=state.layout.num_cells)
        counts: Ints = state.tier(request.tier).counts + freed
        return counts

    def _notify(self, index: int, deadline_ms: int, num_kept: int) -> None:
        if index not in self._notified and not self._attempts[index].is_stopping:
            self.lending.leaves(self._attempts[index], num_kept)
        self._notified.add(index)
        self._ends[index] = min(self._ends.item(index), deadline_ms)

    def _commit(self, job_id: JobId, gpus: Ints, choice: "_Choice") -> Notified:
        """``gpus``: all that is held for the job."""
        layout = self._state.layout
        held = tuple([layout.uuids[gpu] for gpu in gpus.tolist()])
        taken, runner_up = frozenset(held), choice.runner_up
        for index in choice.victims:
            attempt, cost = self._attempts[index], self._givers.costs.item(index)
            keeps = kept_beside(attempt, taken)
            given = tuple([uuid for uuid in attempt.gpus if uuid not in keeps]) if keeps else attempt.gpus
            notice_s = self._policy.tiers[attempt.tier].notice_s or 0.0
            self._notify(index, self._now_ms + int(notice_s * 1000), len(keeps))
            self._givers.loses(attempt.tenant_id, len(given))
            if keeps:
                self.promises.mask[layout.gpu_indices(keeps)] = True
            self.reclaims.append(Reclaim(attempt.attempt_id, job_id, notice_s, given, held, cost, runner_up, keeps))
        self.promises.hold(job_id, gpus)
        return Notified(int(self._ends[choice.victims].max()))


@dataclass(frozen=True, slots=True)
class _Choice:
    """``target``: where the gang goes once ``victims``, by index, have given what of theirs lies in it."""

    target: Chosen
    victims: list[int]
    cost: float
    runner_up: RunnerUp | None = None
