"""Start times of the queue at one pace, shared by all answers about one plan, simulated as far as they need.

Beyond the simulated part the queue is a backlog of work, which the fleet does as fast as it can.
"""

from functools import cached_property

from scheduler.forecast.backlog import Backlog, Floats
from scheduler.forecast.forward_simulation import ForwardSimulation
from scheduler.forecast.release_times import Pace
from scheduler.solve.solver import could_ever_fit


class ForwardRun:
    """The start times of one pace. ``play``: not yet started, and used by nothing else."""

    def __init__(self, pace: Pace, volume: Backlog, play: ForwardSimulation) -> None:
        self._pace, self._volume, self._play = pace, volume, play
        self._starts, self._starts_ms = play.starts(), dict[int, int]()

    def start_ms(self, number: int) -> int | None:
        """Return the start of the job with this number in the queue snapshot; None if unknown."""
        while number not in self._starts_ms:
            started = next(self._starts, None)
            if started is None:
                return self._by_volume(number) if self._play.is_cut_short else None
            self._starts_ms[started] = self._play.at_ms
        return self._starts_ms[number]

    def _by_volume(self, number: int) -> int | None:
        """Return a start from the backlog: the work before the job over the GPUs that do it.

        The domain, and the jobs that run at the same time, are unknown. Early: as soon as all that work could have
        begun, on each GPU that the tier admits. Late: when all of it is over, and the running work too, on as many GPUs
        as the simulation has kept in use.
        """
        request, state = self._volume.line.requests[number], self._play.state
        if request is None or not could_ever_fit(state, request):
            return None
        work, num_gpus = float(self._work_before[number]), int(state.tier(request.tier).admitted_counts.sum())
        if self._pace.is_late:
            work, num_gpus = work + self._work_running, self._play.num_working or num_gpus
        return self._play.at_ms + int(work / num_gpus)

    @cached_property
    def _work_before(self) -> Floats:
        return self._volume.work_before(self._pace, self._starts_ms)

    @cached_property
    def _work_running(self) -> float:
        return self._play.work_running()
