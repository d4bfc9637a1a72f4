"""Calls that may never return."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from agents.probes.deadline import Callers, NoAnswerError
from tests.waiting import wait_until


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging calls wait for: opened at the end, so that no thread is left."""
    gate = threading.Event()
    yield gate
    gate.set()


def hang(gate: threading.Event) -> Callable[[], str]:
    def work() -> str:
        gate.wait(100)
        return "late"

    return work


def test_answers_and_errors_come_side_by_side() -> None:
    answers = Callers().all_within(60.0, {"good": lambda: 7, "bad": lambda: 1 // 0})
    assert answers["good"] == 7
    assert isinstance(answers["bad"], ZeroDivisionError)


def test_calls_that_hang_cost_the_deadline_once_not_once_each(gate: threading.Event) -> None:
    begun = time.monotonic()
    answers = Callers().all_within(2.0, {str(index): hang(gate) for index in range(8)} | {"good": lambda: "now"})
    assert time.monotonic() - begun < 8 * 2.0
    assert answers.pop("good") == "now"
    assert all(isinstance(answer, NoAnswerError) for answer in answers.values())


def test_a_key_that_hangs_is_not_called_again(gate: threading.Event) -> None:
    callers = Callers()
    with pytest.raises(NoAnswerError):
        callers.within(0.05, "gpu", hang(gate))
    begun = time.monotonic()
    with pytest.raises(NoAnswerError, match="no answer for"):
        callers.within(60.0, "gpu", lambda: "new")
    assert time.monotonic() - begun < 30.0
    assert not callers.is_idle


def test_a_late_answer_is_never_taken_for_that_of_a_newer_question(gate: threading.Event) -> None:
    callers = Callers()
    with pytest.raises(NoAnswerError):
        callers.within(0.05, "gpu", hang(gate))
    gate.set()
    wait_until(lambda: callers.is_idle)
    assert callers.within(60.0, "gpu", lambda: "new") == "new"
