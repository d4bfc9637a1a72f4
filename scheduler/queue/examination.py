"""The bound on what one cycle examines: a queue of many kinds of jobs costs a cycle no more than one of few.

Each cycle tries to start every job. If it does not start, the cycle examines it: why it waits, whether reclaim helps,
and whether a place is held for it. All of that is computed once for jobs with equal requests on an unchanged fleet, and
costs more the more hosts there are. After so many computations the rest of the queue is put off. The first half of them
serves the head of the queue, in order. The second half continues where the cycle before it has stopped. It is counted
by itself: jobs that are never put off, such as those with a standing reclaim, compute too, and could use up all of it.

    position            0  1  2  3  4  5  6  7  8  9
    cycle 1, from 0     h  h  c  c  c  -  -  -  -  -    h: the head; c: the round continues; -: put off until later
    cycle 2, from 5     h  h  -  -  -  c  c  c  -  -
    cycle 3, from 8     h  h  -  -  -  -  -  -  c  c    the next cycle begins the round again
"""

from typing import Final

WORK: Final = 300_000
"""Hosts that the computations of one cycle read, each once: some tenths of a second of CPU."""
FIXED_HOSTS: Final = 500
"""A computation costs as much as this number of hosts before it reads one."""
LEAST: Final = 8
"""Computations of a cycle, however many hosts there are."""


def most_computed(num_hosts: int) -> int:
    """Return the number of computations after which jobs are put off."""
    return max(WORK // (num_hosts + FIXED_HOSTS), LEAST)


class Examination:
    """The examination of one cycle. ``begins``: the position at which the round continues; None: no bound.

    ``until``: the first position that this round has not come to; 0: it has come to the end of the queue.
    """

    def __init__(self, num_hosts: int, begins: int | None) -> None:
        self._most = None if begins is None else most_computed(num_hosts)
        self._begins, self._position, self._num_computed = begins or 0, -1, 0
        self._is_head = True
        self._num_before_round: int | None = None
        self.until = 0

    def next_job(self) -> None:
        """Come to the next job of the queue."""
        self._position += 1

    def computed(self) -> None:
        """Count one computation."""
        self._num_computed += 1

    def admits(self) -> bool:
        """Return whether the present job may be examined, and note where the round ends."""
        if self._most is None:
            return True
        self._is_head = self._is_head and self._num_computed < self._most // 2
        if self._is_head:
            return True
        if self._position < self._begins:
            return False
        if self._num_before_round is None:
            self._num_before_round = self._num_computed
        if self._num_computed - self._num_before_round >= self._most - self._most // 2:
            self.until = self.until or self._position
            return False
        return True
