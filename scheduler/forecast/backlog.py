"""The queue as a volume of work: GPU-milliseconds, and in whose way they lie."""

from collections.abc import Collection
from functools import cached_property
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from muster.domain.policy.document import Policy
from scheduler.forecast.queue_snapshot import Line
from scheduler.forecast.releases import Pace
from scheduler.queue.order import LEAST_RUN_S

_SAID: Final = attrgetter("expected_s", "predicted_s")

Floats = npt.NDArray[np.float64]


class Volume:
    """Of ``line``. What it takes to know is asked once, and only if somebody asks."""

    def __init__(self, line: Line, policy: Policy) -> None:
        self.line, self._policy = line, policy

    def work_before(self, pace: Pace, started: Collection[int]) -> Floats:
        """GPU-milliseconds of those before each number, but of those that have started."""
        work = self._num_gpus * (self._runs_s * 1000 * pace.share + pace.cleaning_ms)
        work[list(started)] = 0.0
        return np.append(0.0, np.cumsum(work))

    @cached_property
    def _num_gpus(self) -> Floats:
        """None of who starts never."""
        is_possible = [request is not None for request in self.line.requests]
        return np.where(is_possible, np.diff(self.line.gpus_before), 0).astype(np.float64)

    @cached_property
    def _runs_s(self) -> Floats:
        """As ``order.expected_s`` of each."""
        said = np.array([*map(_SAID, self.line.jobs)], dtype=np.float64).reshape(-1, 2)
        believed = np.where(np.isnan(said[:, 0]), said[:, 1], said[:, 0])
        return np.maximum(np.where(np.isnan(believed), self._policy.queue.expected_run_s, believed), LEAST_RUN_S)
