"""A gang of two hosts, each with a launcher and supervisors of its own: both start, or none."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Engine

from control.core.unit_of_work import UnitOfWorkFactory
from muster.domain.ids import JobId
from muster.domain.states import Cause, JobState
from tests.fleet_factory import Fleet, enrol_host, make_fleet
from tests.host_case import HostCase

MARK = "import os; open(os.environ['MARKS'] + '/' + os.environ['MUSTER_NODE_ID'], 'x').close()"


class Gang:
    """``first`` and ``second`` share the control plane and the machine, and nothing else."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet = fleet
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.first = HostCase(fleet, folder / "first" / "state")
        second = replace(fleet, node_id=enrol_host(fleet.units, "beta"))
        self.second = HostCase(second, folder / "second" / "state")

    def submit(self, **spec: object) -> JobId:
        program = {"launcher": "command", "argv": [sys.executable, "-c", MARK], "env": {"MARKS": str(self.marks)}}
        job_id = self.fleet.submit(program=program, shape={"nodes": 2, "gpus_per_node": 1}, **spec)
        self.fleet.cycle()
        return job_id

    def num_ready(self, job_id: JobId) -> int:
        return sum(view.part.ready_at is not None for view in self.fleet.attempts(job_id)[0].hosts)

    def has_started(self) -> bool:
        return any(self.marks.iterdir())

    def turn_until_over(self, job_id: JobId) -> None:
        def is_over() -> bool:
            self.second.launcher.turn(woken=True)
            return self.fleet.attempts(job_id)[0].attempt.cause is not None and not self.fleet.num_taken_gpus()

        self.first.turn_until(is_over)


@pytest.fixture
def gang(engine: Engine, tmp_path: Path) -> Iterator[Gang]:
    gang = Gang(make_fleet(UnitOfWorkFactory(engine)), tmp_path)
    yield gang
    gang.first.close()
    gang.second.close()


def test_a_host_that_is_ready_starts_with_the_last_one(gang: Gang) -> None:
    job_id = gang.submit()
    gang.first.turn_until(lambda: gang.num_ready(job_id) == 1)
    for _ in range(5):
        gang.first.launcher.turn(woken=True)
    assert not gang.has_started()
    gang.first.restart()  # what a launcher knew of its waiting program the next one finds again
    gang.turn_until_over(job_id)
    assert gang.fleet.job(job_id).state is JobState.SUCCEEDED, gang.fleet.job(job_id).state_reason
    assert {path.name for path in gang.marks.iterdir()} == {gang.first.fleet.node_id, gang.second.fleet.node_id}


def test_a_host_that_lacks_something_releases_the_other_and_is_named(gang: Gang) -> None:
    job_id = gang.submit(secrets=["token"])
    for case, mode in ((gang.first, 0o600), (gang.second, 0o644)):
        secret = case.secrets_dir / "acme" / "token"
        secret.parent.mkdir(parents=True)
        secret.write_text("value")
        secret.chmod(mode)
    gang.turn_until_over(job_id)
    (view,) = gang.fleet.attempts(job_id)
    assert view.attempt.cause is Cause.PREFLIGHT_FAILED
    assert view.attempt.proof is not None
    assert view.attempt.proof.startswith("beta: ")
    assert "0600" in view.attempt.proof
    assert not gang.has_started()
    assert gang.fleet.job(job_id).state is JobState.HELD, "there is no other host"
