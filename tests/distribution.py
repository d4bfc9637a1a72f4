"""Division of a run's tests among its workers: by seconds rather than by number, and by package.

Each worker starts the servers, the browser and the warm interpreters that its tests ask for. So a package stays with
one worker where that is possible: two workers that share the pages would start two browsers and fill two fleets. The
durations are in ``tests/durations.json``. A worker without work takes half of what another has left, from its
end; a package in ``WHOLE`` is never taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from xdist.scheduler import WorkStealingScheduling

from tools.test_durations import UNKNOWN_TEST_S, FileDuration, read_durations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pytest
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

WHOLE: Final = frozenset({"tests/browser"})
KEPT: Final = 2
"""A worker runs one test and has to know the next: xdist takes neither away."""


def package_of(test: str) -> str:
    """Return the folder below ``tests``, or ``tests`` for a file in it."""
    folders = test.partition("::")[0].split("/")[:-1]
    return "/".join(folders[:2])


def seconds_of(test: str, durations: Mapping[str, FileDuration]) -> float:
    """Return the expected seconds of a test: its own if it is slow, or the mean of the others in its file."""
    path, _, name = test.partition("::")
    known = durations.get(path)
    if known is None:
        return UNKNOWN_TEST_S
    if name in known.slow:
        return known.slow[name]
    return max(0.0, known.seconds - sum(known.slow.values())) / max(1, known.tests - len(known.slow))


def divided(tests: Sequence[str], seconds: Sequence[float], num_workers: int) -> list[list[int]]:
    """Return each worker's tests, by index: whole packages, the longest first, each to the worker with the least.

    A package longer than a worker's share is cut into shares. In a worker's queue the packages of long tests come
    first, so that short ones are left at the end.
    """
    share_s = sum(seconds) / num_workers
    packages: dict[str, list[int]] = {}
    for index, test in enumerate(tests):
        packages.setdefault(package_of(test), []).append(index)
    parts = [part for name, held in packages.items() for part in _parts(name, held, seconds, share_s)]
    queues: list[list[list[int]]] = [[] for _ in range(num_workers)]
    for part in sorted(parts, key=lambda part: -_sum(part, seconds)):
        least = min(queues, key=lambda queue: sum(_sum(held, seconds) for held in queue))
        least.append(part)
    for queue in queues:
        queue.sort(key=lambda part: (package_of(tests[part[0]]) not in WHOLE, -_sum(part, seconds) / len(part)))
    return [[index for part in queue for index in part] for queue in queues]


def _parts(name: str, tests: list[int], seconds: Sequence[float], share_s: float) -> Iterator[list[int]]:
    if name in WHOLE:
        yield tests
        return
    part: list[int] = []
    part_s = 0.0
    for index in tests:
        if part and part_s + seconds[index] > share_s:
            yield part
            part, part_s = [], 0.0
        part.append(index)
        part_s += seconds[index]
    yield part


def _sum(tests: Iterable[int], seconds: Sequence[float]) -> float:
    return sum(seconds[index] for index in tests)


def taken(pending: Sequence[int], tests: Sequence[str], seconds: Sequence[float]) -> list[int]:
    """Return what a worker without work takes of another's pending tests: from the end, up to half of the seconds."""
    half_s = _sum(pending, seconds) / 2
    found: list[int] = []
    for index in reversed(pending[KEPT:]):
        half_s -= seconds[index]
        if (found and half_s < 0) or package_of(tests[index]) in WHOLE:
            break
        found.append(index)
    return found[::-1]


class Distribution(WorkStealingScheduling):
    """The scheduler of xdist (``pytest_xdist_make_scheduler``)."""

    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        super().__init__(config, log)
        self._seconds: list[float] = []

    def schedule(self) -> None:
        """Divide the tests once all workers have collected the same."""
        if self.collection is not None or not self._check_nodes_have_same_collection():
            super().schedule()
            return
        self.collection = next(iter(self.node2collection.values()))
        durations = read_durations(self.config.rootpath)
        self._seconds = [seconds_of(test, durations) for test in self.collection]
        for node, share in zip(self.nodes, divided(self.collection, self._seconds, len(self.nodes)), strict=True):
            if share:
                self.node2pending[node].extend(share)
                node.send_runtest_some(share)
        self.check_schedule()

    def check_schedule(self) -> None:
        """Give pending tests to workers without work, or request tests of another for them, or let them end."""
        up = {node: pending for node, pending in self.node2pending.items() if not node.shutting_down}
        self._give([node for node, pending in up.items() if len(pending) < KEPT])
        idle = [node for node, pending in up.items() if len(pending) < KEPT]
        if not idle or self.steal_requested_from_node is not None:
            return
        node, found = self._most(up)
        if not found or node is None:
            for one in idle:
                one.shutdown()
            return
        node.send_steal(found)
        self.steal_requested_from_node = node

    def _give(self, idle: Sequence[WorkerController]) -> None:
        for place, node in enumerate(idle):
            self._send_tests(node, -(-len(self.pending) // (len(idle) - place)))

    def _most(self, up: Mapping[WorkerController, list[int]]) -> tuple[WorkerController | None, list[int]]:
        """Return the worker of which the most seconds can be taken, and these tests."""
        assert self.collection is not None
        found = {node: taken(pending, self.collection, self._seconds) for node, pending in up.items()}
        most = max(found, key=lambda node: _sum(found[node], self._seconds), default=None)
        return most, found[most] if most is not None else []
