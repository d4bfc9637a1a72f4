"""Places that are held for jobs that wait, and who runs there meanwhile: whoever is gone before one is needed.

Nothing is stored: the next cycle finds each place anew, from what runs then. Where places follow each other on one GPU,
it is the one that comes first that keeps it until then. How a place is found is each rule's own:
``scheduler.holds.backfill`` (EASY) and ``scheduler.holds.conservative``.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from muster.domain.policy.document import Policy
from scheduler.fleet.topology import NEVER_MS, FleetState, Ints
from scheduler.holds.outcomes import Refused
from scheduler.model import Held, WaitingJob, Workload
from scheduler.quota.tenancy import Limit
from scheduler.reclaim.reclaim import Reclaimer
from scheduler.solve.solver import Chosen, Request, place


@dataclass(slots=True)
class Place:
    """``free``: those of its GPUs that nobody runs on or has before it, which are taken in the fleet's state.

    ``until_ms``: when its job starts there; ``end_ms``: when it has ended; ``num_before``: so many places have some of
    its GPUs before; ``is_by_reclaim``: some of it comes free by then by a reclaim alone.
    """

    job: WaitingJob
    gpus: Ints
    free: Ints
    until_ms: int
    end_ms: int = NEVER_MS
    num_before: int = 0
    is_by_reclaim: bool = False


def at_most(until_ms: int, refused: Refused | None) -> int:
    """Until then, or until a reclaim helps."""
    return until_ms if refused is None or refused.until_ms is None else min(until_ms, refused.until_ms)


class HeldPlaces(ABC):
    """The holds of one cycle. Order matters: who comes earlier in the queue holds before who comes later."""

    def __init__(self, state: FleetState, policy: Policy, reclaimer: Reclaimer, workload: Workload) -> None:
        self._state, self._policy, self._reclaimer, self._now_ms = state, policy, reclaimer, workload.now_ms
        self._reopenings = reclaimer.reopenings
        self._places: list[Place] = []

    def books_for_quota(self) -> bool:
        """Whether who waits for quota alone has a place, too."""
        return False

    def could_be_later(self, request: Request) -> bool:
        """Once all planned work that is known of is over, if not before."""
        return self._reopenings.could_be(request)

    @abstractmethod
    def hold(
        self, job: WaitingJob, request: Request, refused: Refused | None = None, *, is_coming: bool = False
    ) -> Held | None:
        """Hold the place that is believed free first; None where there is none, or enough is held already.

        ``refused``: by its moments reclaim will help, so nobody else may have the place for longer; who started there
        would only be the next whose minimum run time is waited for. ``is_coming``: it comes free within a notice, so
        that nothing is reclaimed: held beside the others, or whoever came later would take it, and the next cycle would
        reclaim after all.
        """

    @abstractmethod
    def keep_quota(self, job: WaitingJob) -> int | None:
        """For one that a limit keeps waiting: from when on no job after it has what it needs of that, or None."""

    def limit(self, job: WaitingJob) -> Limit | None:
        """What is kept of a limit for those that start before the job would have ended, and leaves it least."""
        del job
        return None

    def booked(self, job: WaitingJob) -> Limit | None:
        """The limit by which those would not start that have places if the job started now, whatever is idle."""
        del job
        return None

    def told_apart_by(self, job: WaitingJob) -> Hashable:
        """Beside its request, by what a job may have a place where one with an equal request has none."""
        del job
        return None

    def moved(self) -> list[Held]:
        """Those for whom another place is held than was told, since somebody runs there now: from the same moments."""
        return []

    def _held(self, one: Place) -> Held:
        layout = self._state.layout
        gpus = tuple(layout.uuids[gpu] for gpu in one.gpus)
        nodes = {layout.cell_node[cell] for cell in layout.cell_of_gpu[one.gpus].tolist()}
        num_worked_on = len(nodes & self._reopenings.nodes_until(one.until_ms))
        idle = self._num_idle(one)
        return Held(one.job.job_id, gpus, idle, one.until_ms, one.num_before, one.is_by_reclaim, num_worked_on)

    def _num_idle(self, one: Place) -> int:
        """What others could use meanwhile: not what is still cordoned for planned work."""
        return int(np.count_nonzero(self._state.tier(one.job.tier).admitted[one.free]))

    def _is_by_reclaim(self, gpus: Ints, until_ms: int, refused: Refused | None) -> bool:
        if refused is None or refused.free_from_ms is None:
            return False
        endings = self._reclaimer.endings
        return bool((endings.free_from_ms(endings.known_ms())[gpus] > until_ms).any())

    def _keep(self, found: Place) -> Held:
        """``free`` is what is idle of it; neither anybody's place nor what is reclaimed for others is there."""
        self._state.take(found.free)
        self._reclaimer.promises.mask[found.gpus] = True
        self._places.append(found)
        return self._held(found)

    def beside(self, job: WaitingJob, request: Request) -> Chosen | None:
        """Where it may start though others are to start there: they have found other places by then, as early."""
        del job, request
        return None

    def open_to(self, run_s: float | None) -> tuple[int, ...]:
        """The holds, by number, that a job that runs for so long is gone before; None: nobody knows."""
        if run_s is None:
            return ()
        end_ms = self._now_ms + int(run_s * 1000)
        return tuple(
            number for number, place in enumerate(self._places) if end_ms <= place.until_ms and len(place.free)
        )

    def place(self, request: Request, numbers: tuple[int, ...]) -> Chosen | None:
        """On cells that are held, if it can be: what nobody holds is of use to more. Asked with these holds lifted."""
        free = np.concatenate([self._places[number].free for number in numbers])
        layout = self._state.for_tier(request.tier).layout
        inside = place(self._state, request, np.unique(layout.cell_of_gpu[free]))
        return inside or place(self._state, request)

    @contextmanager
    def lifted(self, numbers: tuple[int, ...]) -> Iterator[None]:
        """Inside, what these hold is free; what is still free afterwards is held again."""
        places = [self._places[number] for number in numbers]
        for held in places:
            self._state.give(held.free)
        try:
            yield
        finally:
            for held in places:
                held.free = held.free[self._state.is_free[held.free]]
                self._state.take(held.free)

    def in_the_way(self, request: Request) -> int | None:
        """Of a gang that would fit if nothing were held: until when what it would run on is held."""
        if not any(len(held.free) for held in self._places):
            return None
        with self.lifted(tuple(range(len(self._places)))):
            chosen = place(self._state, request)
        return None if chosen is None else self._first_of(chosen)

    def _first_of(self, chosen: Chosen) -> int | None:
        gpus = set(chosen.gpus.tolist())
        return min((held.until_ms for held in self._places if not gpus.isdisjoint(held.free.tolist())), default=None)
