"""When each job that waits will start, as the planner tells it (``scheduler.forecast.eta``), and when it does.

Traces are short against the bound of passed work. Some jobs say a wall time, longer than they need; of the others
nobody knows how long they run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.forecast.eta import Outlook
from scheduler.model import StartRange
from simulator.traces.jobs import TraceJob
from simulator.traces.planned import Believed, Decision, PlannedQueue


@dataclass(frozen=True, slots=True)
class Told:
    """What was said of a job when it had to wait, and when it started. ``said`` None: nobody knew."""

    said: StartRange | None
    started_ms: int

    @property
    def is_covered(self) -> bool:
        """Within the range; an end that nobody knows holds nothing back."""
        if self.said is None:
            return False
        latest_ms = self.said.latest_ms
        return self.said.earliest_ms <= self.started_ms and (latest_ms is None or self.started_ms <= latest_ms)


def starts_told(
    jobs: Sequence[TraceJob],
    wall_times_s: Sequence[float | None],
    predicted_s: Sequence[float | None] | None = None,
    *,
    num_nodes: int,
    gpus_per_node: int,
) -> list[Told]:
    """Of each job that did not start when it came. ``wall_times_s``: of each job; None: it says none. ``predicted_s``:
    by what others like it took, where there are some.
    """
    believed = Believed(wall_times_s, [None] * len(jobs) if predicted_s is None else predicted_s)
    queue = PlannedQueue(jobs, believed, num_nodes, gpus_per_node)
    said: dict[int, StartRange | None] = {}

    def tell(decision: Decision) -> None:
        outlook = Outlook(decision.state, decision.asked, decision.decided)
        for waiting in decision.decided.waiting:
            number = decision.numbers[waiting.job_id]
            if number not in said:
                said[number] = outlook.start_range(waiting.job_id)

    queue.play(tell)
    return [Told(told, queue.started_ms[number]) for number, told in said.items()]
