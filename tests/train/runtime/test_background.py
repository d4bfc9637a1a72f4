"""Work in the background: its result, what it raised, and the case that no thread is available."""

import threading

import pytest

from muster.train.runtime.background import BackgroundTask


def test_what_comes_of_it_is_there_for_a_caller_that_requests() -> None:
    go = threading.Event()
    work = BackgroundTask(go.wait, "waits")
    assert work.is_busy
    assert not work.wait(0.01)
    go.set()
    assert work.result()
    assert not work.is_busy


def test_what_it_raises_is_raised_to_a_caller_that_requests() -> None:
    with pytest.raises(ZeroDivisionError):
        BackgroundTask(lambda: 1 // 0, "fails").result()


def test_where_no_thread_begins_any_more_it_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    work = BackgroundTask(lambda: threading.current_thread().name, "never")
    assert work.wait()
    assert work.result() == threading.main_thread().name
