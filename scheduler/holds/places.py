"""Places that are held for pending jobs, and that other jobs may use if they end before the hold's job starts.

Nothing is stored: the next cycle finds each place again, from the attempts that run then. If several places have one
GPU, the first place keeps it until its job starts. Each rule has its own way to find a place:
``scheduler.holds.backfill`` (EASY) and ``scheduler.holds.conservative``.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from muster.domain.ids import JobId
from muster.domain.policy.document import Policy
from scheduler.fleet.kept_values import KeptValues
from scheduler.fleet.topology import NEVER_MS, FleetState, Ints
from scheduler.holds.outcomes import NO_REFUSAL, Refused
from scheduler.model import Hold, WaitingJob, Workload
from scheduler.quota.tenancy import Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import Chosen, Request, most_nodes, place


@dataclass(slots=True)
class Place:
    """One hold. ``free``: its idle GPUs without an earlier place, which are taken in the fleet's state.

    ``until_ms``: when its job starts there; ``end_ms``: when it has ended; ``num_before``: how many earlier places have
    some of its GPUs; ``is_by_reclaim``: some of them become free by then only by a reclaim. ``latest_ms``: the latest
    start, if the start is firm; else None.
    """

    job: WaitingJob
    gpus: Ints
    free: Ints
    until_ms: int
    end_ms: int = NEVER_MS
    num_before: int = 0
    is_by_reclaim: bool = False
    latest_ms: int | None = None


def at_most(until_ms: int, refused: Refused) -> int:
    """Return that time, or the earlier one at which a reclaim helps."""
    return until_ms if refused.until_ms is None else min(until_ms, refused.until_ms)


class Holds(ABC):
    """The holds of one cycle. Order matters: earlier jobs of the queue get their holds before later ones."""

    def __init__(self, state: FleetState, policy: Policy, reclaimer: Reclaimer, workload: Workload) -> None:
        self._state, self._policy, self._reclaimer, self._now_ms = state, policy, reclaimer, workload.now_ms
        self._reopenings = reclaimer.reopenings
        self._places: list[Place] = []
        self._most_lifted: KeptValues[int] = KeptValues()
        self._num_changes = 0
        """How often the places or their idle parts changed."""

    def books_for_quota(self) -> bool:
        """Return whether a job that waits for quota alone has a place, too."""
        return False

    def could_be_later(self, request: Request) -> bool:
        """Return whether the request fits once all known planned work is over, if not before."""
        return self._reopenings.could_be(request)

    @abstractmethod
    def hold(
        self, job: WaitingJob, request: Request, refused: Refused = NO_REFUSAL, *, is_coming: bool = False
    ) -> Hold | None:
        """Hold the place that is expected to be free first; None if there is none, or enough is held already.

        ``refused``: reclaim will help by its times, so no other job may have the place for longer; a job that started
        there would only be the next one whose minimum run time has to pass. ``is_coming``: the place becomes free
        within a notice, so nothing is reclaimed. It is held in addition to the others: else a later job would take it,
        and the next cycle would reclaim after all.
        """

    @abstractmethod
    def keep_quota(self, job: WaitingJob) -> int | None:
        """Keep quota for a job that a limit keeps pending.

        Return from when on no later job has the quota that it needs; None if that is unknown.
        """

    has_firm_starts = False
    """Whether the rule can keep a firm start (``scheduler.holds.firm_starts``)."""

    def reserve(self, job: WaitingJob, gpus: Ints, latest_ms: int) -> None:
        """Hold the place of a firm start again, which will be free in time. A rule without firm starts holds none."""
        del job, gpus, latest_ms

    def seek(self, job: WaitingJob, request: Request, latest_ms: int) -> bool:
        """Hold another place for the same latest start; return whether there is one."""
        del job, request, latest_ms
        return False

    def improve(self, job: WaitingJob, request: Request) -> None:
        """Hold a better place for the job instead of its own, if there is one that is free as early."""
        del job, request

    def lift(self, job_id: JobId) -> bool:
        """Lift the place of the job's firm start, where it may then start; return whether it has one."""
        del job_id
        return False

    def settle(self, job_id: JobId, *, is_served: bool) -> None:
        """Hold a lifted place again, unless the job has started, or has GPUs reclaimed for it."""
        del job_id, is_served

    def is_lifted(self, job: WaitingJob) -> bool:
        """Return whether the place of its firm start is lifted, so that ``hold`` returns it."""
        del job
        return False

    def lets_start(self, job: WaitingJob, from_ms: int) -> bool:
        """Return whether its limits let the job start then."""
        del job, from_ms
        return True

    def may_be_refused(self, job: WaitingJob) -> bool:
        """Return whether firm guarantees of other tenants may refuse the job when its place is free."""
        del job
        return False

    def places(self) -> dict[JobId, Place]:
        return {one.job.job_id: one for one in self._places}

    def limit(self, job: WaitingJob) -> Limit | None:
        """Return the limit that leaves the job least, given the quota kept for starts before its end."""
        del job
        return None

    def reserved(self, job: WaitingJob) -> Limit | None:
        """Return the limit by which jobs with holds could not start if the job started now, whatever is idle."""
        del job
        return None

    def distinguishing_key(self, job: WaitingJob) -> Hashable:
        """Return the key by which jobs with equal requests may still differ in whether they get a place."""
        del job
        return None

    def moved(self) -> list[Hold]:
        """Return the holds that moved to other GPUs for the same times, since another job runs there now."""
        return []

    def _hold(self, one: Place) -> Hold:
        layout = self._state.layout
        gpus = tuple(layout.uuids[gpu] for gpu in one.gpus)
        num_worked_on = self._num_worked_on(one.gpus, one.until_ms)
        idle = self._num_idle(one)
        return Hold(
            one.job.job_id, gpus, idle, one.until_ms, one.num_before, one.is_by_reclaim, num_worked_on, one.latest_ms
        )

    def _num_worked_on(self, gpus: Ints, until_ms: int) -> int:
        """Return on how many of the hosts planned work ends by then."""
        layout = self._state.layout
        nodes = {layout.cell_node[cell] for cell in layout.cell_of_gpu[gpus].tolist()}
        return len(nodes & self._reopenings.nodes_until(until_ms))

    def _num_idle(self, one: Place) -> int:
        """Return how many GPUs others could use meanwhile, without GPUs that are still cordoned for planned work."""
        return int(np.count_nonzero(self._state.tier(one.job.tier).admitted[one.free]))

    def _is_by_reclaim(self, gpus: Ints, until_ms: int, refused: Refused) -> bool:
        if refused.free_from_ms is None:
            return False
        endings = self._reclaimer.endings
        return bool((endings.free_from_ms(endings.known_ms())[gpus] > until_ms).any())

    def _keep(self, found: Place) -> Hold:
        """Hold the place. ``free`` is its idle part; it has no GPUs of other places or of reclaims for others."""
        self._state.take(found.free)
        self._reclaimer.holds.cover(found.gpus)
        self._places.append(found)
        self._num_changes += 1
        return self._hold(found)

    def alongside(self, job: WaitingJob, request: Request) -> Chosen | None:
        """Return where the job may start on GPUs of holds, if these find other places for the same times."""
        del job, request
        return None

    def open_to(self, job: WaitingJob) -> tuple[int, ...]:
        """Return the holds, by number, before whose start the job ends; none if its run time is unknown.

        A firm start relies on wall times alone: a job that is only expected to end may run longer.
        """
        if job.expected_run_s is None:
            return ()
        end_ms = self._now_ms + int(job.expected_run_s * 1000)
        return tuple(
            number
            for number, place in enumerate(self._places)
            if end_ms <= place.until_ms and len(place.free) and (place.latest_ms is None or job.expected_s is not None)
        )

    def place(self, request: Request, numbers: tuple[int, ...]) -> Chosen | None:
        """Return a place on held cells if possible: more jobs can use cells without a hold.

        These holds must be lifted.
        """
        free = np.concatenate([self._places[number].free for number in numbers])
        layout = self._state.for_tier(request.tier).layout
        inside = place(self._state, request, np.unique(layout.cell_of_gpu[free]))
        return inside or place(self._state, request)

    def most_nodes(self, request: Request, numbers: tuple[int, ...]) -> int:
        """Return the most hosts that one home of the request's family has once these holds are lifted."""

        def count() -> int:
            with self.lifted(numbers):
                return most_nodes(self._state, request)

        stamp = self._state.stamp, self._num_changes
        return self._most_lifted.get(stamp, (request.family, numbers), count)

    @contextmanager
    def lifted(self, numbers: tuple[int, ...]) -> Iterator[None]:
        """Free these holds inside the context; GPUs that are still free afterwards are held again."""
        places = [self._places[number] for number in numbers]
        for held in places:
            self._state.give(held.free)
        try:
            yield
        finally:
            for held in places:
                still_free = held.free[self._state.is_free[held.free]]
                self._num_changes += len(still_free) != len(held.free)
                held.free = still_free
                self._state.take(held.free)

    def in_the_way(self, request: Request) -> int | None:
        """Return until when the GPUs are held on which the gang would fit; None if holds do not prevent it."""
        held_idle = [held for held in self._places if len(held.free)]
        if not held_idle or self.most_nodes(request, tuple(range(len(self._places)))) < request.nodes:
            return None
        if len(held_idle) == 1 and most_nodes(self._state, request) < request.nodes:
            return held_idle[0].until_ms
        with self.lifted(tuple(range(len(self._places)))):
            chosen = place(self._state, request)
        return None if chosen is None else self._first_of(chosen)

    def _first_of(self, chosen: Chosen) -> int | None:
        gpus = set(chosen.gpus.tolist())
        return min((held.until_ms for held in self._places if not gpus.isdisjoint(held.free.tolist())), default=None)
