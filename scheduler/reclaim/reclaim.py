"""Reclaim as a contract: which attempts give GPUs back, for which job, with what notice, and never more than needed.

No attempt is reclaimed unless one domain becomes sufficient by it. Only reclaimable tiers of lower priority give (I7),
no attempt before its tier's minimum run time, no tenant more than its cap in a window (I9). If enough GPUs become free
soon without reclaim, the job waits for them. Freed GPUs are held for the beneficiary, and a reclaim that is no longer
needed is withdrawn. Within a reclaimable tier a tenant takes back what it has lent (``scheduler.reclaim.lending``).
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence

import numpy as np

from muster.domain.ids import AttemptId, JobId
from muster.domain.policy.document import Policy
from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.maintenance_end import MaintenanceEnds
from scheduler.fleet.maintenance_start import starting
from scheduler.fleet.topology import Flags, FleetState, Ints
from scheduler.forecast.end_times import CLEANING_MS, Endings
from scheduler.holds.outcomes import Coming, Notified, Obstacle, Outcome, Refused
from scheduler.holds.reclaim_holds import ReclaimHolds
from scheduler.model import Parts, Reclaim, StandingReclaim, Workload
from scheduler.reclaim.candidates import ReclaimCandidates
from scheduler.reclaim.host_replacement import Missing
from scheduler.reclaim.lending import Claim, Lending
from scheduler.reclaim.reclaim_room import ReclaimRoom
from scheduler.reclaim.release_effect import Reach
from scheduler.reclaim.shrinking import kept_alongside
from scheduler.reclaim.victim_choice import Choice, Chooser
from scheduler.solve.recovery import replan
from scheduler.solve.solver import Request


def _stays(workload: Workload) -> dict[AttemptId, int]:
    """Return the GPUs with which jobs of attempts continue that give some, or that change their size."""
    held = {own.job_id: len(own.gpus) for own in workload.holds}
    stays = {one.attempt_id: held[one.job_id] for one in workload.running if one.job_id in held}
    return stays | {reclaim.victim: len(reclaim.keeps) for reclaim in workload.reclaims if reclaim.keeps}


class Reclaimer:
    """The reclaim of one cycle, which chooses victims, one beneficiary after another, and remembers the choices."""

    def __init__(self, state: FleetState, policy: Policy, workload: Workload) -> None:
        self._state, self._policy, self._now_ms = state, policy, workload.now_ms
        self._attempts = sorted(workload.running, key=lambda attempt: attempt.attempt_id)
        indices = {attempt.attempt_id: index for index, attempt in enumerate(self._attempts)}
        self.endings = Endings(state, policy, self._attempts, workload)
        self._owner, self._ends = self.endings.owner, self.endings.ends_ms
        self._notified: set[int] = set()
        self.lending = Lending(workload.tenancy, policy, self._attempts, _stays(workload))
        self._undelivered: dict[JobId, list[tuple[int, int]]] = defaultdict(list)
        self._standing_ms = self._ends.copy()
        self._rooms: KeptValues[ReclaimRoom] = KeptValues()
        self.num_counted_on = 0
        """How many undelivered notices of earlier cycles became counted on: each may have changed an end."""
        for reclaim in workload.reclaims:
            if reclaim.victim in indices:
                self._stand(reclaim, indices[reclaim.victim])
        self._candidates = ReclaimCandidates(self._attempts, self._notified, workload, policy)
        self._candidates.still_open = {index for own in self._undelivered.values() for index, _ in own}
        self.holds = ReclaimHolds(state, workload.reclaims, indices)
        for reclaim in workload.reclaims:
            if reclaim.victim in indices:
                self.holds.cover(state.layout.gpu_indices(reclaim.keeps))
        self.reclaims: list[Reclaim] = []
        self.reopenings = MaintenanceEnds(state, workload)
        self.reach = Reach(state, self._owner, self._candidates, self.holds)
        factor = policy.reclaim.shrink_cost_factor
        self._chooser = Chooser(state, self._attempts, self._candidates, self.reach, self._now_ms, factor)

    @property
    def stamp(self) -> Hashable:
        """The key of all that reclaim depends on, apart from the job: equal ones make equal choices."""
        holds = self.holds
        changes = holds.num_changes, self.lending.num_changes, self.num_counted_on, self.endings.num_holders
        return (self._state.stamp, len(self.reclaims), len(holds.lapses), *changes)

    def _stand(self, reclaim: StandingReclaim, index: int) -> None:
        """Record a standing reclaim. Jobs count on it from its delivery on: see ``count_on``."""
        self._leaves(index, len(reclaim.keeps))
        self._standing_ms[index] = min(self._standing_ms.item(index), reclaim.deadline_ms)
        if reclaim.is_delivered or self._attempts[index].is_stopping:
            self._ends[index] = self._standing_ms[index]
        else:
            self._undelivered[reclaim.beneficiary].append((index, reclaim.deadline_ms))

    def count_on(self, job_id: JobId) -> bool:
        """Let this job and the ones behind it count on undelivered notices for it; return whether they free more.

        The jobs ahead do not count on them, as in the cycle that chose the victims. A place ahead that rested on such a
        victim could leave idle GPUs to this job, whose start withdraws the notice on which the place rests. A delivered
        notice is not withdrawn: all jobs count on it.
        """
        counted_on = self._undelivered.pop(job_id, [])
        if not counted_on:
            return False
        for index, deadline_ms in counted_on:
            self._ends[index] = min(self._ends.item(index), deadline_ms)
            self._candidates.still_open.discard(index)
        self.num_counted_on += len(counted_on)
        return self._free_more([index for index, _ in counted_on])

    def _free_more(self, victims: Sequence[int]) -> bool:
        """Return whether these victims release GPUs that are held for no job."""
        given = self._state.layout.gpu_indices(uuid for index in victims for uuid in self._attempts[index].gpus)
        return not self.holds.mask[given].all()

    def still_suffices(self, job_id: JobId, request: Request, run_s: float | None = None, *, last: Parts = ()) -> bool:
        """Return whether the gang will fit once every victim has released its GPUs; the job's hold must be lifted.

        ``run_s``: its expected run time, counted from the last deadline. ``last``: the last parts of a gang that is to
        continue with the GPUs that it kept.
        """
        held = self.holds.hold_of(job_id)
        starts_ms = max(self.holds.deadline_ms(job_id), self._now_ms)
        request = starting(self._state, request, starts_ms, run_s)
        notice_ms = int((self._candidates.longest_notice_s(request) or 0.0) * 1000)
        until_ms = max(self.holds.deadline_ms(job_id), self._now_ms + notice_ms)
        # Its hold may need what a notice frees whose job is behind it now: fair shares change the order.
        ends_ms = np.minimum(self._ends, self._standing_ms)
        is_coming: Flags = np.append(ends_ms <= until_ms, True)[self._owner[held]]
        freed = held[is_coming & ~self._state.is_free[held]]
        return self._goes_on(freed, request, last) if last else self.reach.with_freed(freed, request) is not None

    def hold_standing(self, waiting: Collection[JobId]) -> None:
        """Hold the GPUs of standing reclaims for pending jobs; withdraw the reclaims for others."""
        for job_id in self.holds.jobs():
            if job_id in waiting:
                self.holds.hold(job_id, self.holds.hold_of(job_id))
            else:
                self.withdraw(job_id, "the job that it was for is no longer pending")

    def withdraw(self, job_id: JobId, why: str) -> None:
        """End the hold for the job. Victims that no host has notified continue; none is chosen again in this cycle."""
        spared = {withdrawal.victim for withdrawal in self.holds.withdraw(job_id, why)}
        for index, attempt in enumerate(self._attempts):
            if attempt.attempt_id in spared:
                self.endings.go_on(index)
                self._standing_ms[index] = self._ends[index]
                self._candidates.still_open.discard(index)
        self._undelivered.pop(job_id, None)

    def choose(
        self,
        job_id: JobId,
        request: Request,
        claim: Claim | None = None,
        *,
        is_beyond: bool = False,
        run_s: float | None = None,
    ) -> Outcome:
        """Reclaim for a gang that does not fit now: ``reclaims`` grows, or the outcome gives the reason against it.

        ``claim``: its tenant's claim on lent GPUs; ``is_beyond``: it has none, since with the job the tenant would
        exceed its guarantee. ``run_s``: its expected run time. No gang counts on a victim that leaves before its
        deadline, so the gang must end before hosts close even if it starts only then.
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
        """Reclaim hosts in place of the ones that a gang lost of its ``last``, so that it continues with its ranks.

        The GPUs that it kept are held for it with them.
        """
        choice = self._choice(missing.request, claim, run_s=run_s)
        if not isinstance(choice, Choice):
            return choice
        target = choice.target.gpus
        latest_ms = self._now_ms + int((self._candidates.longest_notice_s(request, claim) or 0.0) * 1000)
        then = starting(self._state, request, latest_ms, run_s)
        if not self._goes_on(target[~self._state.is_free[target]], then, last):
            return Refused()
        return self._commit(job_id, np.union1d(missing.kept, target), choice)

    def _goes_on(self, freed: Ints, request: Request, last: Parts) -> bool:
        """Return whether it continues with the GPUs that it kept of ``last``, if ``freed`` were free as well."""
        freed = self.reach.open_to(request, freed)
        self._state.give(freed)
        chosen = replan(self._state, request, last)
        self._state.take(freed)
        return chosen is not None

    def _choice(
        self, request: Request, claim: Claim | None, *, is_beyond: bool = False, run_s: float | None = None
    ) -> Choice | Coming | Refused:
        notice_s = self._candidates.longest_notice_s(request, claim)
        if notice_s is None:
            return Refused(Obstacle.OWN_GUARANTEE if is_beyond else None)
        latest_ms = self._now_ms + int(notice_s * 1000)
        room = self._room_of(request, claim, latest_ms, run_s)
        refused = None if room is None else room.refusal(request.nodes)
        if refused is not None:
            return refused
        coming = self.reach.open_to(request, self.coming(latest_ms))
        until_ms = self._comes_by_itself(request, coming, latest_ms, run_s)
        if until_ms is not None:
            return Coming(until_ms)
        request = starting(self._state, request, latest_ms, run_s)
        self._state.give(coming)
        choice = self._chooser.victims(request, claim, None if room is None else room.due)
        if isinstance(choice, Choice) and not self._candidates.still_open.isdisjoint(choice.victims):
            choice = self._without_notified(request, claim)
        self._state.take(coming)
        return choice

    def _room_of(
        self, request: Request, claim: Claim | None, latest_ms: int, run_s: float | None
    ) -> ReclaimRoom | None:
        """Return what reclaim could free to the request's family; None if hosts close or reopen until then."""
        then = starting(self._state, request, latest_ms, run_s)
        if self.reopenings.num_until(latest_ms) or then is not request:
            return None
        claim_key = None if claim is None else claim.key

        def make() -> ReclaimRoom:
            coming = self.reach.open_to(request, self.coming(latest_ms))
            return ReclaimRoom(self._state, self.reach, self._candidates, request, claim, coming, self._now_ms)

        return self._rooms.get(self.stamp, (request.family, claim_key), make)

    def _without_notified(self, request: Request, claim: Claim | None) -> Choice | Refused:
        """Return the choice among attempts without a notice: no attempt is notified for two jobs."""
        still_open, self._candidates.still_open = self._candidates.still_open, set()
        choice = self._chooser.victims(request, claim)
        self._candidates.still_open = still_open
        return choice

    def distinguishing_key(self, request: Request, claim: Claim | None, run_s: float) -> float | None:
        """Return the key by which reclaim may help a job where it does not help one with an equal request."""
        notice_s = self._candidates.longest_notice_s(request, claim) if self._state.closings_ms else None
        if notice_s is None:
            return None
        is_same = starting(self._state, request, self._now_ms + int(notice_s * 1000), run_s) is request
        return None if is_same else run_s

    def _comes_by_itself(self, request: Request, coming: Ints, latest_ms: int, run_s: float | None) -> int | None:
        """Return when enough GPUs are free without reclaim, by ``latest_ms`` at the latest.

        None if they are not, or if hosts close first. ``coming``: GPUs that become free until then.
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
        """Return the same as ``_comes_by_itself``, also on hosts on which planned work is over by then."""
        later = self.reopenings.fleet().at(latest_ms)
        chosen = self.reach.with_freed(coming, starting(later, request, latest_ms, run_s), later)
        if chosen is None:
            return None
        reopens_ms = self.reopenings.of_gpus()[chosen.gpus]
        opened_ms = int(reopens_ms[reopens_ms <= latest_ms].max(initial=self._now_ms))
        return max(opened_ms, self.endings.last_ms(chosen.gpus[~self._state.is_free[chosen.gpus]]))

    def _full_ms(self, request: Request, coming: Ints) -> int | None:
        """Return when its place is free, of the GPUs that become free; None if there is no place."""
        chosen = self.reach.with_freed(coming, request)
        return None if chosen is None else self.endings.last_ms(chosen.gpus[~self._state.is_free[chosen.gpus]])

    def coming(self, until_ms: int, ends_ms: Ints | None = None) -> Ints:
        """Return the GPUs in use that become free by themselves until then and are held for no job.

        ``ends_ms``: from ``Endings``, known or estimated; then GPUs that are being cleaned come too.
        """
        if ends_ms is None:
            gpus = self.endings.coming(until_ms, self.endings.certain_ms())
        else:
            gpus = self.endings.coming(until_ms, ends_ms)
            if until_ms >= self._now_ms + CLEANING_MS:
                is_coming = np.zeros_like(self._state.is_free)
                is_coming[gpus] = is_coming[self.endings.cleaned()] = True
                gpus = np.flatnonzero(is_coming)
        return gpus[~self.holds.mask[gpus]]

    def _notify(self, index: int, deadline_ms: int, num_kept: int) -> None:
        self._leaves(index, num_kept)
        self._ends[index] = min(self._ends.item(index), deadline_ms)

    def _leaves(self, index: int, num_kept: int) -> None:
        if index not in self._notified and not self._attempts[index].is_stopping:
            self.lending.leaves(self._attempts[index], num_kept)
        self._notified.add(index)

    def _commit(self, job_id: JobId, gpus: Ints, choice: Choice) -> Notified:
        """Commit the choice: record notices and reclaims. ``gpus``: all GPUs that are held for the job."""
        layout = self._state.layout
        held = tuple([layout.uuids[gpu] for gpu in gpus.tolist()])
        taken, runner_up = frozenset(held), choice.runner_up
        for index in choice.victims:
            attempt, cost = self._attempts[index], self._candidates.costs.item(index)
            keeps = kept_alongside(attempt, taken)
            given = tuple([uuid for uuid in attempt.gpus if uuid not in keeps]) if keeps else attempt.gpus
            notice_s = self._policy.tiers[attempt.tier].notice_s or 0.0
            self._notify(index, self._now_ms + int(notice_s * 1000), len(keeps))
            self._candidates.loses(attempt.tenant_id, len(given))
            if keeps:
                self.holds.cover(layout.gpu_indices(keeps))
            self.reclaims.append(Reclaim(attempt.attempt_id, job_id, notice_s, given, held, cost, runner_up, keeps))
        self.holds.hold(job_id, gpus)
        num_gpus = sum(len(one.gpus) for one in self.reclaims[-len(choice.victims) :])
        return Notified(int(self._ends[choice.victims].max()), num_gpus, self._free_more(choice.victims))
