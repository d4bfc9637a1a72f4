"""The queue report of one cycle: the verdict of each pending job, and the holds.

A verdict is replaced if its hold moves, or if victims that were chosen later make a hold possible.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from muster.domain.ids import JobId
from scheduler.explain import explain
from scheduler.explain.funnel import Funnel
from scheduler.holds.outcomes import Refused
from scheduler.holds.places import HeldPlaces
from scheduler.model import Held, Turn, Verdict, Waiting, WaitingJob
from scheduler.queue.fair_share import FairShares
from scheduler.quota.tenancy import Limit
from scheduler.solve.request import Request

MAX_HELD_ANEW: Final = 4
"""So many jobs without a hold are tried again when a reclaim frees more than its beneficiary takes."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A job that was tried. ``booked``: the limit that keeps it pending, whatever is idle."""

    job: WaitingJob
    request: Request
    through: Funnel
    booked: Limit | None = None

    def with_place(self, held: Held) -> Verdict:
        if self.booked is None:
            return explain.held_for_it(self.request, held, self.through)
        return explain.quota_booked(self.job, self.booked, held)


class Waiters:
    """The queue report. ``waiting``: in the order of the tries; ``holds``: in the order in which they were found.

    ``funnel_of``: the reasons that exclude GPUs for a request, as the fleet is by then. Without a ``backfill`` nothing
    is held.
    """

    def __init__(
        self,
        shares: FairShares,
        is_passed_enough: Callable[[WaitingJob], bool],
        funnel_of: Callable[[Request], Funnel],
        backfill: HeldPlaces | None = None,
    ) -> None:
        self._shares, self._is_passed_enough, self._funnel_of = shares, is_passed_enough, funnel_of
        self._backfill = backfill
        self._turns: dict[JobId, Turn] = {}
        self._held_for: dict[JobId, _Tried] = {}
        self._unheld: dict[JobId, tuple[WaitingJob, Request]] = {}
        self.waiting: list[Waiting] = []
        self.holds: list[Held] = []

    def is_on(self, job: WaitingJob, turn: Turn) -> None:
        """Record the turn in which the job is tried now."""
        self._turns[job.job_id] = turn

    def tell(self, job: WaitingJob, verdict: Verdict) -> None:
        self.waiting.append(self._told(job, verdict))

    def hold(
        self,
        job: WaitingJob,
        request: Request,
        through: Funnel,
        refused: Refused | None = None,
        *,
        is_coming: bool = False,
        booked: Limit | None = None,
    ) -> Held | None:
        """Hold a place for it, if there is one and the policy allows another hold; else remember the job.

        ``booked``: the limit that keeps it pending, whatever is idle.
        """
        held = None if self._backfill is None else self._backfill.hold(job, request, refused, is_coming=is_coming)
        if held is not None:
            self._keep(held, _Tried(job, request, through, booked))
        elif booked is None and len(self._unheld) < MAX_HELD_ANEW:
            self._unheld[job.job_id] = job, request
        return held

    def hold_anew(self) -> None:
        """Hold GPUs for earlier jobs, after victims were chosen whose GPUs become free soon.

        Else the next cycle would give these GPUs to them, and reclaim again for jobs that had counted on them in this
        one.
        """
        for job, request in list(self._unheld.values()):
            through = self._funnel_of(request)
            held = None if self._backfill is None else self._backfill.hold(job, request)
            if held is not None:
                del self._unheld[job.job_id]
                self._keep(held, _Tried(job, request, through))
                self._tell_anew([held])

    def move(self, moved: Iterable[Held]) -> None:
        """Replace the holds that moved to other GPUs, with their verdicts."""
        elsewhere = {held.job_id: held for held in moved}
        if elsewhere:
            self.holds = [elsewhere.get(held.job_id, held) for held in self.holds]
            self._tell_anew(elsewhere.values())

    def _keep(self, held: Held, tried: "_Tried") -> None:
        self.holds.append(held)
        self._held_for[held.job_id] = tried

    def _tell_anew(self, holds: Iterable[Held]) -> None:
        told: dict[JobId, Waiting] = {}
        for held in holds:
            tried = self._held_for[held.job_id]
            told[held.job_id] = self._told(tried.job, tried.with_place(held))
        self.waiting = [told.get(one.job_id, one) for one in self.waiting]

    def _told(self, job: WaitingJob, verdict: Verdict) -> Waiting:
        turn = self._turns[job.job_id]
        return Waiting(job.job_id, self._with_turn(job, turn, verdict), turn)

    def _with_turn(self, job: WaitingJob, turn: Turn, verdict: Verdict) -> Verdict:
        if turn is Turn.OVER:
            return explain.over_share(verdict, self._shares.over_gpus(job) or 0.0)
        return explain.passed_enough(verdict) if self._is_passed_enough(job) else verdict
