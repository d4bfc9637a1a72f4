"""When the ranks try a program's last save: on clocks of their own, one for each rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Barrier, Thread, get_ident
from types import SimpleNamespace
from typing import Any

import pytest

from muster.train.runtime import last_save
from muster.train.runtime.last_save import LastSave
from muster.train.runtime.orders import NO_DEADLINE_MS

NEEDED_S = 0.5


class Clocks:
    """Clocks of ranks that are threads. Each begins at 0 and moves only while its rank sleeps."""

    def __init__(self) -> None:
        self._now_s: dict[int, float] = {}

    def time(self) -> float:
        return self._now_s.get(get_ident(), 0.0)

    monotonic = time

    def sleep(self, seconds: float) -> None:
        self._now_s[get_ident()] = self.time() + seconds


@dataclass
class Received:
    """Orders of one rank: a stop request that it receives at ``stop_at_s``."""

    clocks: Clocks
    stop_at_s: float | None
    notice_ms: int
    stop_reason: str | None = None
    deadline_ms: int = NO_DEADLINE_MS

    def listen(self) -> None:
        if self.stop_at_s is not None and self.clocks.time() >= self.stop_at_s:
            self.stop_reason, self.deadline_ms = "reclaim", self.notice_ms


@dataclass
class Together:
    """The agreements of two ranks. It fails, instead of waiting, where one rank makes fewer than the other."""

    barrier: Barrier = field(default_factory=lambda: Barrier(2, timeout=60))
    reported: dict[int, list[int]] = field(default_factory=dict)

    def of(self, rank: int) -> Any:
        def highest(values: list[int]) -> list[int]:
            self.reported[rank] = values
            self.barrier.wait()
            found = [max(pair) for pair in zip(self.reported[0], self.reported[1], strict=True)]
            self.barrier.wait()
            return found

        return SimpleNamespace(rank=rank, max=highest)


def tries_of(monkeypatch: pytest.MonkeyPatch, stop_at_s: float, notice_ms: int) -> list[list[float]]:
    """Return the times of both ranks' tries, which all fail. Only rank 0 receives the stop."""
    clocks, together = Clocks(), Together()
    monkeypatch.setattr(last_save, "time", clocks)
    found: list[list[float]] = [[], []]
    stopping: list[bool] = []

    def failing(rank: int) -> Callable[[], bool]:
        def try_once() -> bool:
            found[rank].append(clocks.time())
            return False

        return try_once

    def save(rank: int) -> None:
        orders: Any = Received(clocks, stop_at_s if rank == 0 else None, notice_ms)
        saves: Any = SimpleNamespace(needed_s=NEEDED_S, is_name_taken=False)
        last = LastSave(saves, together.of(rank), orders, 300.0)
        last.save(failing(rank), 10)
        stopping.append(last.is_stopping)

    threads = [Thread(target=save, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stopping == [True, True]
    return found


def test_a_stop_that_one_rank_receives_ends_the_pause_of_all_in_time_for_one_more_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause from 7 s on would be over at 15 s. After 10 s no slice and save would fit before 11 s."""
    assert tries_of(monkeypatch, 8.0, 11_000) == [[0.0, 1.0, 3.0, 7.0, 10.0]] * 2


@pytest.mark.parametrize(
    ("stop_at_s", "tries"),
    [
        pytest.param(0.0, [0.0, 1.0], id="stop_before_the_first_try"),
        pytest.param(9.5, [0.0, 1.0, 3.0, 7.0, 10.0], id="stop_within_a_pause"),
    ],
)
def test_a_stop_without_a_deadline_leaves_one_more_try(
    monkeypatch: pytest.MonkeyPatch, stop_at_s: float, tries: list[float]
) -> None:
    assert tries_of(monkeypatch, stop_at_s, NO_DEADLINE_MS) == [tries] * 2


def test_a_save_whose_name_is_taken_is_tried_once() -> None:
    """The store keeps a pinned generation through a rollback, so its name never becomes free."""
    orders: Any = Received(Clocks(), None, 0)
    ranks: Any = SimpleNamespace(rank=0, max=pytest.fail)
    saves: Any = SimpleNamespace(needed_s=NEEDED_S, is_name_taken=True)
    last = LastSave(saves, ranks, orders, 300.0)
    last.save(lambda: False, 10)
    assert (last.is_saved, last.num_tries) == (False, 1)
