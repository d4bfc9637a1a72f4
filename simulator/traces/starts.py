"""Start forecasts of pending jobs by the planner (``scheduler.forecast.start_range``), and their real starts.

Traces are short against the bound of overtaken work. Some jobs state a wall time, longer than they need; the run time
of the others is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.forecast.start_range import StartForecast
from scheduler.model import StartRange
from simulator.traces.jobs import TraceJob
from simulator.traces.planned import Decision, Expected, PlannedQueue


@dataclass(frozen=True, slots=True)
class Start:
    """A forecast for a job when it became pending, and its start. ``expected`` None: unknown."""

    expected: StartRange | None
    started_ms: int

    @property
    def is_covered(self) -> bool:
        """True if the start is within the range; an unknown end bounds nothing."""
        if self.expected is None:
            return False
        latest_ms = self.expected.latest_ms
        return self.expected.earliest_ms <= self.started_ms and (latest_ms is None or self.started_ms <= latest_ms)


def starts_reported(
    jobs: Sequence[TraceJob],
    wall_times_s: Sequence[float | None],
    predicted_s: Sequence[float | None] | None = None,
    *,
    num_nodes: int,
    gpus_per_node: int,
) -> list[Start]:
    """Return the forecast for each job that did not start at its submission.

    ``wall_times_s``: of each job; None: it states none. ``predicted_s``: from similar jobs, where there are some.
    """
    believed = Expected(wall_times_s, [None] * len(jobs) if predicted_s is None else predicted_s)
    queue = PlannedQueue(jobs, believed, num_nodes, gpus_per_node)
    said: dict[int, StartRange | None] = {}

    def record(decision: Decision) -> None:
        outlook = StartForecast(decision.state, decision.question, decision.decided)
        for waiting in decision.decided.waiting:
            number = decision.numbers[waiting.job_id]
            if number not in said:
                said[number] = outlook.start_range(waiting.job_id)

    queue.play(record)
    return [Start(told, queue.started_ms[number]) for number, told in said.items()]
