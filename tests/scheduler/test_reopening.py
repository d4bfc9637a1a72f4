"""When planned work is over: the next window of a node, with those that begin before it ends."""

from muster.domain.ids import NodeId
from scheduler.reopening import reopenings_of

A, B = NodeId("a"), NodeId("b")


def test_windows_that_meet_are_one_and_a_later_one_is_not_foreseen() -> None:
    windows = [(A, 500, 600), (A, 0, 100), (A, 50, 80), (A, 100, 200), (B, 30, 40)]
    assert reopenings_of(windows) == {A: 200, B: 40}
    assert reopenings_of([]) == {}
