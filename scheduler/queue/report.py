"""The queue report of one cycle: the verdict of each pending job, and the holds.

A verdict is replaced if its hold moves, or if victims that were chosen later make a hold possible.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from muster.domain.ids import JobId
from scheduler.explain import explain
from scheduler.explain.exclusions import Funnel
from scheduler.explain.kept_reasons import KeptReasons
from scheduler.holds.outcomes import NO_REFUSAL, Refused
from scheduler.holds.places import Holds
from scheduler.model import Hold, Turn, Verdict, Waiting, WaitingJob
from scheduler.queue.fair_share import FairShares
from scheduler.quota.tenancy import Limit
from scheduler.solve.request import Request

MAX_HOLDS_AGAIN: Final = 4
"""Most jobs without a hold that are tried again when a reclaim frees more than its beneficiary takes."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A job that was tried. ``reserved``: the limit that keeps it pending, whatever is idle."""

    job: WaitingJob
    request: Request
    through: Funnel
    reserved: Limit | None = None

    def with_place(self, hold: Hold) -> Verdict:
        if self.reserved is None:
            return explain.hold_for_it(self.request, hold, self.through)
        return explain.quota_reserved(self.job, self.reserved, hold)


class QueueReport:
    """The queue report. ``waiting``: in the order of the tries; ``holds``: in the order in which they were found.

    ``reasons``: the ones that exclude GPUs for a request, as the fleet is by then.
    """

    def __init__(
        self,
        shares: FairShares,
        is_passed_enough: Callable[[WaitingJob], bool],
        reasons: KeptReasons,
        backfill: Holds,
    ) -> None:
        self._shares, self._is_passed_enough, self.reasons = shares, is_passed_enough, reasons
        self._backfill = backfill
        self._turns: dict[JobId, Turn] = {}
        self._hold_for: dict[JobId, _Tried] = {}
        self._unheld: dict[JobId, tuple[WaitingJob, Request]] = {}
        self.waiting: list[Waiting] = []
        self.holds: list[Hold] = []

    def is_on(self, job: WaitingJob, turn: Turn) -> None:
        """Record the turn in which the job is tried now."""
        self._turns[job.job_id] = turn

    def report(self, job: WaitingJob, verdict: Verdict) -> None:
        self.waiting.append(self._entry(job, verdict))

    def hold(
        self,
        job: WaitingJob,
        request: Request,
        through: Funnel,
        refused: Refused = NO_REFUSAL,
        *,
        is_coming: bool = False,
        reserved: Limit | None = None,
    ) -> Hold | None:
        """Hold a place for it, if there is one and the policy allows another hold; else remember the job.

        ``reserved``: the limit that keeps it pending, whatever is idle.
        """
        held = self._backfill.hold(job, request, refused, is_coming=is_coming)
        if held is not None:
            self._keep(held, _Tried(job, request, through, reserved))
        elif reserved is None and len(self._unheld) < MAX_HOLDS_AGAIN:
            self._unheld[job.job_id] = job, request
        return held

    def hold_again(self) -> None:
        """Hold GPUs for earlier jobs, after victims were chosen whose GPUs become free soon.

        Else the next cycle would give these GPUs to them, and reclaim again for jobs that had counted on them in this
        one.
        """
        for job, request in list(self._unheld.values()):
            through = self.reasons.funnel(request)
            held = self._backfill.hold(job, request)
            if held is not None:
                del self._unheld[job.job_id]
                self._keep(held, _Tried(job, request, through))
                self._report_again([held])

    def move(self, moved: Iterable[Hold]) -> None:
        """Replace the holds that moved to other GPUs, with their verdicts."""
        elsewhere = {held.job_id: held for held in moved}
        if elsewhere:
            self.holds = [elsewhere.get(held.job_id, held) for held in self.holds]
            self._report_again(elsewhere.values())

    def _keep(self, hold: Hold, tried: "_Tried") -> None:
        self.holds.append(hold)
        self._hold_for[hold.job_id] = tried

    def _report_again(self, holds: Iterable[Hold]) -> None:
        told: dict[JobId, Waiting] = {}
        for held in holds:
            tried = self._hold_for[held.job_id]
            told[held.job_id] = self._entry(tried.job, tried.with_place(held))
        self.waiting = [told.get(one.job_id, one) for one in self.waiting]

    def _entry(self, job: WaitingJob, verdict: Verdict) -> Waiting:
        turn = self._turns[job.job_id]
        return Waiting(job.job_id, self._with_turn(job, turn, verdict), turn)

    def _with_turn(self, job: WaitingJob, turn: Turn, verdict: Verdict) -> Verdict:
        if turn is Turn.OVER:
            return explain.over_share(verdict, self._shares.over_gpus(job) or 0.0)
        return explain.passed_enough(verdict) if self._is_passed_enough(job) else verdict
