"""Beyond the simulated part of a long queue, starts follow from the work before each job."""

import random
from dataclasses import replace

import pytest

from muster.domain.ids import JobId
from muster.domain.policy.document import DEFAULT_POLICY
from scheduler.fleet.topology import FleetState
from scheduler.forecast import forward_simulation
from scheduler.forecast.release_times import EARLY_SHARE
from scheduler.forecast.start_range import StartForecast
from scheduler.model import Question, StartRange, WaitingJob, Workload
from scheduler.planner import plan_on
from tests.scheduler.fleets import MINUTE_MS, NOW_MS, hold, host, job, of_host, running

NUM_HOSTS, NUM_JOBS, WALL_S = 4, 60, 3600.0


def forecast(queue: list[WaitingJob]) -> StartForecast:
    """On four hosts, each of which is held for an hour by one job."""
    gpus = [gpu for number in range(NUM_HOSTS) for gpu in host(f"h{number}", 8)]
    names = [f"h{number}" for number in range(NUM_HOSTS)]
    busy = tuple(running(f"a{name}", of_host(name), tier="on_demand", ends_minutes=60) for name in names)
    held = {uuid for attempt in busy for uuid in attempt.gpus}
    asked = Question(DEFAULT_POLICY, hold(gpus, held), queue, Workload(NOW_MS, busy))
    state = FleetState(asked.gpus, DEFAULT_POLICY)
    return StartForecast(state, asked, plan_on(state, queue, DEFAULT_POLICY, asked.workload))


def whole_hosts(num_jobs: int = NUM_JOBS) -> list[WaitingJob]:
    return [replace(job(f"j{number:02}", gpus=8, at=number), expected_s=WALL_S) for number in range(num_jobs)]


def ranges(found: StartForecast, numbers: list[int]) -> dict[int, StartRange | None]:
    return {number: found.start_range(JobId(f"j{number:02}")) for number in numbers}


@pytest.fixture
def few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_simulation, "MAX_STARTS", 8)


@pytest.mark.usefixtures("few_starts")
def test_the_work_before_a_job_reports_when_it_starts() -> None:
    """Fourteen waves of an hour each go before the last, and the one that runs."""
    told = forecast(whole_hosts()).start_range(JobId(f"j{NUM_JOBS - 1}"))
    assert told is not None
    assert told.latest_ms is not None
    waves_ms = NUM_JOBS // NUM_HOSTS * 60 * MINUTE_MS
    assert NOW_MS + EARLY_SHARE * waves_ms * 0.8 < told.earliest_ms < NOW_MS + EARLY_SHARE * waves_ms * 1.2
    assert NOW_MS + waves_ms * 0.9 < told.latest_ms < NOW_MS + waves_ms * 1.2


@pytest.mark.usefixtures("few_starts")
def test_it_does_not_matter_a_caller_that_requests_first() -> None:
    numbers = list(range(NUM_JOBS))
    in_order = ranges(forecast(whole_hosts()), numbers)
    random.Random(1).shuffle(numbers)  # noqa: S311  # a test that repeats
    assert ranges(forecast(whole_hosts()), numbers) == in_order


@pytest.mark.usefixtures("few_starts")
def test_of_equal_jobs_the_later_is_reported_no_earlier_moment() -> None:
    told = ranges(forecast(whole_hosts()), list(range(NUM_JOBS)))
    earliest = [one.earliest_ms for one in told.values() if one is not None]
    latest = [one.latest_ms for one in told.values() if one is not None and one.latest_ms is not None]
    assert len(earliest) == len(latest) == NUM_JOBS
    assert earliest == sorted(earliest)
    assert latest == sorted(latest)


@pytest.mark.usefixtures("few_starts")
def test_what_fits_nowhere_starts_after_no_work() -> None:
    never = replace(job("never", nodes=NUM_HOSTS + 1, gpus=8, at=NUM_JOBS), expected_s=WALL_S)
    assert forecast([*whole_hosts(), never]).start_range(JobId("never")) is None


def test_what_is_played_and_what_is_reported_by_work_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is in the way but work: whole hosts alone."""
    monkeypatch.setattr(forward_simulation, "MAX_STARTS", 1_000)
    played = forecast(whole_hosts()).start_range(JobId(f"j{NUM_JOBS - 1}"))
    monkeypatch.setattr(forward_simulation, "MAX_STARTS", 8)
    by_work = forecast(whole_hosts()).start_range(JobId(f"j{NUM_JOBS - 1}"))
    assert played is not None
    assert by_work is not None
    assert played.latest_ms is not None
    assert by_work.latest_ms is not None
    assert abs(by_work.earliest_ms - played.earliest_ms) < 0.2 * (played.earliest_ms - NOW_MS)
    assert abs(by_work.latest_ms - played.latest_ms) < 0.2 * (played.latest_ms - NOW_MS)
