"""Reclaim as a contract: who must give GPUs back, to whom, with what notice, and never more than is needed.

Nothing is evicted unless one domain becomes sufficient by it. Only reclaimable tiers of lower priority give (I7), no
attempt before its tier's minimum run time, no tenant more than its cap in a window (I9). What ends soon in any case is
waited for. What is freed is held for its beneficiary, and a reclaim that is needed no more is withdrawn. Within a
reclaimable tier a tenant takes back what it has lent (``scheduler.reclaim.lending``).
"""

from collections.abc import Collection

import numpy as np

from muster.domain.ids import AttemptId, JobId
from muster.domain.policy.document import Policy
from scheduler.fleet.maintenance_end import Reopenings
from scheduler.fleet.maintenance_start import starting
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.forecast.endings import CLEANING_MS, Endings
from scheduler.holds.outcomes import Coming, Notified, Obstacle, Outcome, Refused
from scheduler.holds.reclaim_holds import Promises
from scheduler.model import Parts, Reclaim, Workload
from scheduler.reclaim.candidates import Givers
from scheduler.reclaim.choosing import Choice, Chooser
from scheduler.reclaim.lending import Claim, Lending
from scheduler.reclaim.reach import Reach
from scheduler.reclaim.replacing import Missing
from scheduler.reclaim.shrinking import kept_beside
from scheduler.solve.recovery import replan
from scheduler.solve.solver import Request


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
        self.reopenings = Reopenings(state, workload)
        self.reach = Reach(state, self._owner, self._givers, self.promises)
        factor = policy.reclaim.shrink_cost_factor
        self._chooser = Chooser(state, self._attempts, self._givers, self.reach, self._now_ms, factor)

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
        return self._goes_on(freed, request, last) if last else self.reach.with_freed(freed, request) is not None

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
        return self._commit(job_id, choice.target.gpus, choice) if isinstance(choice, Choice) else choice

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
        if not isinstance(choice, Choice):
            return choice
        target = choice.target.gpus
        latest_ms = self._now_ms + int((self._givers.longest_notice_s(request, claim) or 0.0) * 1000)
        then = starting(self._state, request, latest_ms, run_s)
        if not self._goes_on(target[~self._state.is_free[target]], then, last):
            return Refused()
        return self._commit(job_id, np.union1d(missing.kept, target), choice)

    def _goes_on(self, freed: Ints, request: Request, last: Parts) -> bool:
        """Whether it would with what it kept of ``last``, if ``freed`` were free as well."""
        freed = self.reach.open_to(request, freed)
        self._state.give(freed)
        chosen = replan(self._state, request, last)
        self._state.take(freed)
        return chosen is not None

    def _choice(
        self, request: Request, claim: Claim | None, *, is_beyond: bool = False, run_s: float | None = None
    ) -> Choice | Coming | Refused:
        notice_s = self._givers.longest_notice_s(request, claim)
        if notice_s is None:
            return Refused(Obstacle.OWN_GUARANTEE if is_beyond else None)
        latest_ms = self._now_ms + int(notice_s * 1000)
        coming = self.reach.open_to(request, self.coming(latest_ms))
        until_ms = self._comes_by_itself(request, coming, latest_ms, run_s)
        if until_ms is not None:
            return Coming(until_ms)
        request = starting(self._state, request, latest_ms, run_s)
        self._state.give(coming)
        choice = self._chooser.victims(request, claim)
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
        if self.reopenings.num_until(latest_ms):
            opened_ms = self._after_work_ms(request, coming, latest_ms, run_s)
            if opened_ms is not None:
                return opened_ms
        first_ms = self._full_ms(request, coming)
        if first_ms is None:
            return None
        for at_ms in (max(first_ms, self._now_ms), latest_ms):
            then = starting(self._state, request, at_ms, run_s)
            until_ms = first_ms if then is request else self._full_ms(then, self.coming(at_ms))
            if until_ms is not None:
                return until_ms
        return None

    def _after_work_ms(self, request: Request, coming: Ints, latest_ms: int, run_s: float | None) -> int | None:
        """As ``_comes_by_itself``, on hosts too on which planned work is over by then."""
        later = self.reopenings.fleet().at(latest_ms)
        chosen = self.reach.with_freed(coming, starting(later, request, latest_ms, run_s), later)
        if chosen is None:
            return None
        reopens_ms = self.reopenings.of_gpus()[chosen.gpus]
        opened_ms = int(reopens_ms[reopens_ms <= latest_ms].max(initial=self._now_ms))
        return max(opened_ms, self.endings.last_ms(chosen.gpus[~self._state.is_free[chosen.gpus]]))

    def _full_ms(self, request: Request, coming: Ints) -> int | None:
        """When its place has come free, of what comes free."""
        chosen = self.reach.with_freed(coming, request)
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

    def _notify(self, index: int, deadline_ms: int, num_kept: int) -> None:
        if index not in self._notified and not self._attempts[index].is_stopping:
            self.lending.leaves(self._attempts[index], num_kept)
        self._notified.add(index)
        self._ends[index] = min(self._ends.item(index), deadline_ms)

    def _commit(self, job_id: JobId, gpus: Ints, choice: Choice) -> Notified:
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
        num_gpus = sum(len(one.gpus) for one in self.reclaims[-len(choice.victims) :])
        return Notified(int(self._ends[choice.victims].max()), num_gpus)
