"""The range in which a pending job starts: the queue is simulated twice, with early and with late ends.

``scheduler.forecast.release_times`` gives the ends of running attempts, ``scheduler.forecast.forward_simulation``
the starts that follow.
"""

from collections.abc import Iterator, Sequence

from muster.domain.ids import GpuUuid, JobId
from scheduler.fleet.topology import FleetState
from scheduler.forecast.backlog import Backlog
from scheduler.forecast.forward_simulation import ForwardSimulation
from scheduler.forecast.queue_snapshot import queue_snapshot_of
from scheduler.forecast.release_times import EARLY, LATE, Pace, Releases
from scheduler.forecast.start_forecast import ForwardRun
from scheduler.model import Plan, Question, StartRange


class StartForecast:
    """The base that all answers about one plan share: pending jobs, holds, and the simulated course of the queue.

    ``state``: as the plan left it, and as long as it stays so. The first answer creates it, and each answer simulates
    only as far as it needs; the results do not depend on the order of the answers.
    """

    def __init__(self, state: FleetState, question: Question, decided: Plan) -> None:
        self._state, self._question, self._decided = state, question, decided
        self.line = queue_snapshot_of(state, question, decided)
        self._volume = Backlog(self.line, question.policy)
        self._releases = Releases(state, question, decided)
        self.holdings = self._releases.holdings
        self._courses: dict[Pace, ForwardRun] = {}
        is_idle = state.is_free | ~self._releases.is_busy
        self._idle = state.fork(is_idle, {kind.request.tier for kind in self.line.kinds})

    def start_range(self, job_id: JobId) -> StartRange | None:
        """Return the range of a pending job; None: not even the earliest start is known."""
        number = self.line.number_of[job_id]
        earliest_ms = self._course(EARLY).start_ms(number)
        if earliest_ms is None:
            return None
        latest_ms = self._course(LATE).start_ms(number)
        return StartRange(earliest_ms, None if latest_ms is None else max(earliest_ms, latest_ms))

    def _course(self, pace: Pace) -> ForwardRun:
        if pace not in self._courses:
            layout = self._state.layout
            held = {(job_id, id(uuids)): uuids for job_id, uuids in _holds(self._question, self._decided)}
            holds = [(job_id, layout.gpu_indices(uuids)) for (job_id, _), uuids in held.items()]
            play = ForwardSimulation(self._question, self._decided, pace, self.line, self._releases, self._idle, holds)
            self._courses[pace] = ForwardRun(pace, self._volume, play)
        return self._courses[pace]


def _holds(question: Question, decided: Plan) -> Iterator[tuple[JobId, Sequence[GpuUuid]]]:
    """Yield each hold, some of them several times: each reclaim for a job names all GPUs that are held for it."""
    for own in question.workload.holds:
        yield own.job_id, own.gpus
    for standing in question.workload.reclaims:
        yield standing.beneficiary, standing.hold
    for reclaim in decided.reclaims:
        yield reclaim.beneficiary, reclaim.hold
    for held in sorted(decided.holds, key=lambda held: -held.until_ms):  # of one GPU the first that will run there
        yield held.job_id, held.gpus
