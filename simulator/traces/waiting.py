"""The queue of a trace as a table: a value of all pending jobs is read at once, without a visit to each."""

from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.queue.order import LEAST_RUN_S, slowness
from simulator.traces.jobs import TraceJob

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class Waiting:
    """The table. ``numbers``: jobs in order of submission; each column has a value for each, in that order.

    ``estimates_by_shape``: the expected run times of all pending jobs by number of nodes and GPUs of each, ascending.
    ``priority``: of its tier, 0 if the policy does not define it; ``has_tiers``: whether priorities differ.
    ``is_again``: it was interrupted.
    """

    __slots__ = (
        "_first",
        "_floats",
        "_floats_of",
        "_ints",
        "_ints_of",
        "_shapes",
        "estimates_by_shape",
        "has_tiers",
        "numbers",
    )

    def __init__(self, jobs: Sequence[TraceJob], estimates_s: Sequence[float]) -> None:
        known: dict[tuple[int, int], tuple[int, int]] = {}
        shapes = ((job.num_nodes, job.gpus_per_node) for job in jobs)
        self._shapes = [known.setdefault(shape, shape) for shape in shapes]
        self.numbers: list[int] = []
        self.estimates_by_shape: dict[tuple[int, int], list[float]] = {}
        estimates = np.array(estimates_s, dtype=float)
        expected = np.maximum(estimates, LEAST_RUN_S)
        submitted = np.array([job.submit_s for job in jobs])
        each = np.array([job.gpus_per_node for job in jobs], dtype=float)
        slow = slowness(expected, each, DEFAULT_POLICY)
        self._floats_of: Floats = np.stack([submitted, expected, slow, estimates], axis=1)
        tiers = DEFAULT_POLICY.tiers
        priorities = [tiers[job.tier].priority if job.tier in tiers else 0 for job in jobs]
        told = [(job.num_nodes, job.gpus_per_node, priority, 0) for job, priority in zip(jobs, priorities, strict=True)]
        self._ints_of: Ints = np.array(told, dtype=np.int64)
        self.has_tiers = len(set(priorities)) > 1
        self._floats, self._ints = np.empty((4, len(jobs))), np.empty((4, len(jobs)), dtype=np.int64)
        self._first = 0  # column of the first pending job

    @property
    def submitted_s(self) -> Floats:
        return self._floats[0, self._pending()]

    @property
    def expected_s(self) -> Floats:
        return self._floats[1, self._pending()]

    @property
    def slowness(self) -> Floats:
        return self._floats[2, self._pending()]

    @property
    def estimates_s(self) -> Floats:
        return self._floats[3, self._pending()]

    @property
    def num_nodes(self) -> Ints:
        return self._ints[0, self._pending()]

    @property
    def gpus_per_node(self) -> Ints:
        return self._ints[1, self._pending()]

    @property
    def priority(self) -> Ints:
        return self._ints[2, self._pending()]

    @property
    def is_again(self) -> Flags:
        return self._ints[3, self._pending()] > 0

    def priority_of(self, number: int) -> int:
        """Return the priority of a job, pending or not."""
        return int(self._ints_of[number, 2])

    def add(self, number: int) -> None:
        place = bisect_left(self.numbers, number)
        column = self._make_room(place)
        self.numbers.insert(place, number)
        self._floats[:, column] = self._floats_of[number]
        self._ints[:, column] = self._ints_of[number]
        insort(self.estimates_by_shape.setdefault(self._shapes[number], []), self._estimate_s(number))

    def remove(self, number: int) -> None:
        place = bisect_left(self.numbers, number)
        column, after_last = self._first + place, self._first + len(self.numbers)
        # The shorter side moves: most rules take jobs from the front, where nothing needs to move.
        if place < len(self.numbers) // 2:
            self._shift(self._first, column, 1)
            self._first += 1
        else:
            self._shift(column + 1, after_last, -1)
        del self.numbers[place]
        shape = self._shapes[number]
        alike = self.estimates_by_shape[shape]
        del alike[bisect_left(alike, self._estimate_s(number))]
        if not alike:
            del self.estimates_by_shape[shape]

    def add_again(self, number: int, estimate_s: float) -> None:
        """Add a job that was interrupted, with its new expected run time."""
        expected_s = max(estimate_s, LEAST_RUN_S)
        each = float(self._ints_of[number, 1])
        self._floats_of[number, 1:] = expected_s, slowness(expected_s, each, DEFAULT_POLICY), estimate_s
        self._ints_of[number, 3] = 1
        self.add(number)

    def _estimate_s(self, number: int) -> float:
        return float(self._floats_of[number, 3])

    def _pending(self) -> slice:
        return slice(self._first, self._first + len(self.numbers))

    def _make_room(self, place: int) -> int:
        """Return the column for a new job before the pending job of this place."""
        column, after_last = self._first + place, self._first + len(self.numbers)
        is_nearer_to_front = place < len(self.numbers) // 2
        if self._first > 0 and (is_nearer_to_front or after_last == self._floats.shape[1]):
            self._shift(self._first, column, -1)
            self._first -= 1
            return column - 1
        self._shift(column, after_last, 1)
        return column

    def _shift(self, start: int, stop: int, by: int) -> None:
        if start < stop:
            self._floats[:, start + by : stop + by] = self._floats[:, start:stop]
            self._ints[:, start + by : stop + by] = self._ints[:, start:stop]
