"""The queue as a backlog: GPU-milliseconds of work before each job."""

from collections.abc import Collection
from functools import cached_property
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.domain.policy.document import Policy
from scheduler.forecast.queue_snapshot import QueueSnapshot
from scheduler.forecast.release_times import Pace
from scheduler.queue.order import LEAST_RUN_S

_STATED: Final = attrgetter("expected_s", "predicted_s")

Floats = npt.NDArray[np.float64]


class Backlog:
    """The backlog of ``line``. Its arrays are computed once, at their first use."""

    def __init__(self, line: QueueSnapshot, policy: Policy) -> None:
        self.line, self._policy = line, policy

    def work_before(self, pace: Pace, started: Collection[int]) -> Floats:
        """Return the GPU-milliseconds of jobs before each number, without jobs that have started."""
        work = self._num_gpus * (self._runs_s * 1000 * pace.share + pace.cleaning_ms)
        work[list(started)] = 0.0
        return np.append(0.0, np.cumsum(work))

    @cached_property
    def _num_gpus(self) -> Floats:
        """The GPUs of each job; 0 for a job that never starts."""
        is_possible = [request is not None for request in self.line.requests]
        return np.where(is_possible, np.diff(self.line.gpus_before), 0).astype(np.float64)

    @cached_property
    def _runs_s(self) -> Floats:
        """The run time of each job, as ``order.expected_s`` gives it."""
        said = np.array([*map(_STATED, self.line.jobs)], dtype=np.float64).reshape(-1, 2)
        believed = np.where(np.isnan(said[:, 0]), said[:, 1], said[:, 0])
        return np.maximum(np.where(np.isnan(believed), self._policy.queue.expected_run_s, believed), LEAST_RUN_S)
