"""Gangs whose hosts meet in pairs before they start: real launchers, supervisors and all-gathers of torch over gloo."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine, func, select

from control.core.unit_of_work import UnitOfWorkFactory
from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Event
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.policy.start import PairwisePolicy
from muster.domain.policy.tiers import TierPolicy
from muster.domain.states import Cause, JobState
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet
from tests.host_case import HostCase
from tests.train.marks import TRAINS
from tests.warm_python import WarmPython
from workers.host import supervisor

pytestmark = TRAINS
ROUND_S = 200.0
"""A round of processes that all import torch at once, on a machine that does ten other things."""
SLOW_FRACTION = 0.1
DELAYED = "pairwise.gather~3"
LEAST_PAUSE_S, MOST_PAUSE_S = 0.1, 1.0
"""Between two turns of all hosts."""
Turned = Callable[[], object]


def policy(round_s: float) -> Policy:
    pairwise = PairwisePolicy(gather_bytes=1 << 20, num_gathers=3, slow_fraction=SLOW_FRACTION)
    tier = TierPolicy(priority=1, pairwise_check_s=round_s)
    return Policy(dispatch=DispatchPolicy(ready_within_s=3600.0, pairwise=pairwise), tiers={"on_demand": tier})


class Gang:
    """``number`` hosts. ``failpoints``: of a host's gathers. ``python``: does the gathers."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        number: int,
        failpoints: Mapping[int, str] | None = None,
        round_s: float = ROUND_S,
        python: str = sys.executable,
    ) -> None:
        self.fleet = make_fleet(UnitOfWorkFactory(engine))
        with self.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
            store_policy(unit, policy(round_s), reason="a test")
        self.folder = folder
        self.cases: list[HostCase] = []
        for index in range(number):
            name = "alpha" if index == 0 else f"gpu-{index:02}"
            fleet = self.fleet if index == 0 else replace(self.fleet, node_id=enrol_host(self.fleet.units, name))
            own = self._python(index, python, (failpoints or {}).get(index))
            self.cases.append(HostCase(fleet, folder / f"host-{index}" / "state", python=own))
        self.number = number

    def _python(self, index: int, python: str, failpoint: str | None) -> str:
        """The host's interpreter, in which a gather is delayed or dies."""
        if failpoint is None:
            return python
        path = self.folder / f"python-{index}"
        path.write_text(f'#!/bin/sh\nMUSTER_TRAIN_FAILPOINT={failpoint} exec {python} "$@"\n')
        path.chmod(0o755)
        return str(path)

    def submit(self, nodes: int | None = None) -> JobId:
        program = {"launcher": "command", "argv": [sys.executable, "-c", ""]}
        job_id = self.fleet.submit(program=program, shape={"nodes": nodes or self.number, "gpus_per_node": 2})
        self.fleet.cycle()
        return job_id

    def turn_until(self, is_so: Turned, *, timeout_s: float = 900.0) -> None:
        """Turn less and less often while no event comes: a turn of seven hosts takes a tenth of a second of CPU."""
        deadline = time.monotonic() + timeout_s
        pause_s, num_events = LEAST_PAUSE_S, self._num_events()
        while not is_so():
            assert time.monotonic() < deadline, self.reported()
            self.fleet.reconcile()
            self.fleet.cycle()
            for case in self.cases:
                case.launcher.turn(woken=True)
                case.relay.drain_all()
            found = self._num_events()
            pause_s = min(2 * pause_s, MOST_PAUSE_S) if found == num_events else LEAST_PAUSE_S
            num_events = found
            time.sleep(pause_s)

    def _num_events(self) -> int:
        with self.fleet.units.read() as session:
            return session.scalar(select(func.count()).select_from(Event)) or 0

    def reported(self) -> list[tuple[str, object]]:
        with self.fleet.units.read() as session:
            query = select(Event).where(Event.kind.like("attempt.%")).order_by(Event.serial)
            return [(event.kind, event.payload) for event in session.scalars(query)]

    def node_at(self, index: int) -> str:
        return str(self.cases[index].fleet.node_id)

    def at_fault(self, job_id: JobId) -> list[str]:
        return [str(view.part.node_id) for view in self.fleet.attempts(job_id)[0].hosts if view.part.is_at_fault]

    def end_of_first(self, job_id: JobId) -> tuple[Cause | None, str]:
        attempt = self.fleet.attempts(job_id)[0].attempt
        return attempt.cause, str(attempt.proof)

    def close(self) -> None:
        for case in self.cases:
            case.close()


@pytest.fixture
def make_gang(engine: Engine, tmp_path: Path, warm_python: WarmPython) -> Iterator[Callable[..., Gang]]:
    made: list[Gang] = []

    def make(number: int, **more: object) -> Gang:
        gathers = {"python": str(warm_python.path), **more}
        made.append(Gang(engine, tmp_path, number, **gathers))  # type: ignore[arg-type]  # the test names its fields
        return made[-1]

    yield make
    for gang in made:
        gang.close()


@pytest.mark.timeout(1200)
def test_a_gang_of_hosts_that_are_well_meets_once_and_runs(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(3, python=sys.executable)  # that each host's own interpreter does it is held here
    job_id = gang.submit()
    gang.turn_until(lambda: gang.fleet.job(job_id).finished_at is not None)
    assert gang.fleet.job(job_id).state is JobState.SUCCEEDED, gang.reported()
    (passed,) = [payload for kind, payload in gang.reported() if kind == "attempt.pairwise_passed"]
    assert isinstance(passed, dict)
    assert [len(groups) for groups in passed["rounds"]] == [1]
    assert passed["rounds"][0][0]["rate_bytes_per_s"] > 0


@pytest.mark.timeout(1800)
def test_one_delayed_host_of_seven_is_named_before_any_program_starts(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(7, failpoints={4: DELAYED})
    job_id = gang.submit()
    gang.turn_until(lambda: gang.end_of_first(job_id)[0] is not None)
    cause, proof = gang.end_of_first(job_id)
    assert cause is Cause.PREFLIGHT_FAILED
    assert gang.at_fault(job_id) == [gang.node_at(4)], gang.reported()
    assert "gpu-04: " in proof
    assert "slow: " in proof
    rounds = [payload for kind, payload in gang.reported() if kind == "attempt.pairwise_round"]
    assert len(rounds) <= 4
    assert not any(kind == "attempt.host_started" for kind, _ in gang.reported())


@pytest.mark.timeout(1200)
def test_a_host_whose_gathers_die_is_avoided_and_the_gang_runs_on_the_others(make_gang: Callable[..., Gang]) -> None:
    gang = make_gang(5, failpoints={2: "pairwise.gather"})
    job_id = gang.submit(4)
    nodes = {str(view.part.node_id) for view in gang.fleet.attempts(job_id)[0].hosts}
    if gang.node_at(2) not in nodes:
        pytest.fail("the first gang was to have the bad host: it is the third of five equal ones")
    gang.turn_until(lambda: gang.fleet.job(job_id).finished_at is not None)
    assert gang.fleet.job(job_id).state is JobState.SUCCEEDED, gang.reported()
    assert gang.at_fault(job_id) == [gang.node_at(2)]
    assert "its process ended by signal 9" in gang.end_of_first(job_id)[1]
    assert gang.fleet.job(job_id).restarts_used == 0


@pytest.mark.timeout(1200)
def test_a_launcher_and_a_control_plane_that_come_back_in_the_middle_go_on_with_the_round(
    make_gang: Callable[..., Gang],
) -> None:
    gang = make_gang(3)
    job_id = gang.submit()
    folders = [case.state_dir / "attempts" / gang.fleet.attempts(job_id)[0].attempt.id for case in gang.cases]
    gang.turn_until(lambda: all((folder / "meet.json").exists() for folder in folders))
    for case in gang.cases:
        case.client.is_cut = True
    gang.turn_until(lambda: all((folder / "met.json").exists() for folder in folders))
    for case in gang.cases:
        case.restart()
        case.client.is_cut = False
    gang.turn_until(lambda: gang.fleet.job(job_id).finished_at is not None)
    assert gang.fleet.job(job_id).state is JobState.SUCCEEDED, gang.reported()
    assert len([kind for kind, _ in gang.reported() if kind == "attempt.pairwise_round"]) == 1


@pytest.mark.timeout(1200)
def test_a_host_that_stands_still_in_the_middle_is_named(make_gang: Callable[..., Gang]) -> None:
    """Its supervisor hangs, so that no process on it can report a meeting; its launcher continues its heartbeats."""
    gang = make_gang(4, round_s=20.0)
    job_id = gang.submit()
    still = gang.cases[1]
    folder = still.state_dir / "attempts" / gang.fleet.attempts(job_id)[0].attempt.id
    gang.turn_until((folder / "ready.json").exists)
    gang.turn_until(lambda: any(kind == "attempt.pairwise_round" for kind, _ in gang.reported()))
    pid = supervisor.adopt(folder).pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        gang.turn_until(lambda: gang.at_fault(job_id))
    finally:
        os.kill(pid, signal.SIGCONT)
    assert gang.at_fault(job_id) == [gang.node_at(1)], gang.reported()
    gang.turn_until(lambda: gang.end_of_first(job_id)[0] is not None)
    assert "was silent in rounds 1, 2" in gang.end_of_first(job_id)[1]
