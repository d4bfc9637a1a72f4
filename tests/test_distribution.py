"""Division of a run's tests among workers."""

import pytest

from tests.distribution import divided, package_of, seconds_of, taken
from tools.test_durations import FileDuration

TESTS = [
    *(f"tests/browser/test_pages.py::test_{number}" for number in range(6)),
    *(f"tests/control/test_jobs.py::test_{number}" for number in range(40)),
    *(f"tests/health/test_rules.py::test_{number}" for number in range(100)),
    "tests/test_settings.py::test_one",
]
SECONDS = [{"browser": 8.0, "control": 2.0, "health": 0.01}.get(test.split("/")[1], 1.0) for test in TESTS]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_each_test_has_one_worker_and_pages_stay_with_one(num_workers: int) -> None:
    queues = divided(TESTS, SECONDS, num_workers)
    assert sorted(index for queue in queues for index in queue) == list(range(len(TESTS)))
    (pages,) = [queue for queue in queues if 0 in queue]
    assert pages[:6] == [0, 1, 2, 3, 4, 5]


def test_a_worker_has_its_share_of_seconds_not_of_tests() -> None:
    queues = divided(TESTS, SECONDS, 2)
    first_s, second_s = (sum(SECONDS[index] for index in queue) for queue in queues)
    assert abs(first_s - second_s) < 0.2 * (first_s + second_s)


def test_half_of_the_seconds_is_taken_from_the_end_and_no_page() -> None:
    pending = [index for index, test in enumerate(TESTS) if package_of(test) == "tests/control"]
    found = taken(pending, TESTS, SECONDS)
    assert found == pending[-20:]
    assert taken(list(range(6)), TESTS, SECONDS) == []
    assert taken(pending[:2], TESTS, SECONDS) == [], "a worker keeps the test that it runs and the next"
    assert taken(pending[:3], TESTS, SECONDS) == pending[2:3]


def test_a_slow_test_counts_by_its_own_seconds_and_an_unknown_file_too() -> None:
    durations = {"tests/a.py": FileDuration(tests=3, seconds=10.0, slow={"test_slow[x]": 8.0})}
    assert seconds_of("tests/a.py::test_slow[x]", durations) == 8.0
    assert seconds_of("tests/a.py::test_quick", durations) == 1.0
    assert seconds_of("tests/b.py::test_new", durations) > 0
