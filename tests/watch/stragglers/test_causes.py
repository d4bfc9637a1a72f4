"""The cause of a slow rank where readings overlap: the wait for data holds whatever delays the main thread in it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.stragglers import StragglerPolicy
from watch.stragglers.causes import Explained, explain
from watch.stragglers.compare import Compared
from watch.stragglers.windows import Window

RULES = StragglerPolicy()
USUAL = {"data_s": 0.01, "gc_s": 0.001, "cpu_wait_s": 0.002, "threads_s": 0.01, "io_wait_s": 0.0, "steal_share": 0.0}


def explained(excess_s: float, **more: float) -> Explained:
    """Return the cause of a rank that computes ``excess_s`` longer than 0.2 s, with readings higher by ``more``."""
    own = {name: value + more.get(name, 0.0) for name, value in USUAL.items()}
    window = Window(0, 4, {"own_s": 0.2 + excess_s, **own})
    times_s = (0.2 + excess_s, 0.2, 0.0, excess_s)
    slow = [Compared(window, *times_s, None, is_slow=True, is_steady=True, is_imbalance=False)]
    return explain(slow, [Window(0, 4, {"own_s": 0.2, **USUAL})] * 2, {}, [], RULES)


@pytest.mark.parametrize(
    ("more", "cause", "is_of_process"),
    [
        ({"data_s": 0.1}, "data", False),
        ({"data_s": 0.1, "io_wait_s": 0.09}, "data", False),
        ({"data_s": 0.1, "gc_s": 0.095}, "host", True),
        ({"data_s": 0.1, "cpu_wait_s": 0.09}, "host", False),
        ({"data_s": 0.1, "cpu_wait_s": 0.04, "gc_s": 0.05}, "host", True),
        ({"data_s": 0.1, "gc_s": 0.02, "cpu_wait_s": 0.03}, "data", False),
        ({"data_s": 0.1, "steal_share": 0.3}, "host", False),
        ({"data_s": 0.02, "gc_s": 0.09}, "host", True),
    ],
)
def test_what_delays_the_main_thread_in_the_wait_for_data_is_the_cause(
    more: dict[str, float], cause: str, *, is_of_process: bool
) -> None:
    found = explained(0.1, **more)
    assert (found.cause, found.is_of_process) == (cause, is_of_process)


@pytest.mark.parametrize("num_threads", [1, 8])
def test_a_loader_that_computes_in_threads_is_data_and_of_its_process(num_threads: int) -> None:
    """The main thread waits for it and computes as before, so nearly all of the time is in the wait for data."""
    found = explained(0.1, data_s=0.098, threads_s=0.095 * num_threads)
    assert (found.cause, found.is_of_process, found.is_whole) == ("data", True, True)
    assert any(words.startswith("other threads of its process") for words in found.evidence)


def test_a_thread_that_hinders_all_parts_of_a_step_is_the_process() -> None:
    found = explained(0.2, data_s=0.12, threads_s=0.21)
    assert (found.cause, found.is_of_process) == ("host", True)


@given(st.floats(0.02, 1.0), st.floats(0.0, 0.3), st.floats(0.0, 0.3), st.floats(0.0, 20.0))
def test_a_slow_loader_stays_data_whatever_other_threads_do(
    data_s: float, gc_share: float, wait_share: float, threads_share: float
) -> None:
    more = {"gc_s": gc_share * data_s, "cpu_wait_s": wait_share * data_s, "threads_s": threads_share * data_s}
    assert explained(1.05 * data_s, data_s=data_s, **more).cause == "data"


@given(st.floats(0.02, 1.0), st.floats(0.85, 1.0), st.floats(0.0, 1.0), st.sampled_from(["gc_s", "cpu_wait_s"]))
def test_a_main_thread_that_is_delayed_is_the_host_in_whatever_part_it_happens(
    excess_s: float, share: float, within_data: float, name: str
) -> None:
    more = {name: share * excess_s, "data_s": within_data * share * excess_s}
    assert explained(excess_s, **more).cause == "host"
