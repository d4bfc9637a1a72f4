"""The host that the ranks meet at dies, again and again: the remaining hosts meet elsewhere, at the first try."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import AttemptState, Cause, JobState
from tests.host_case import HostCase
from tests.train import elastic_program
from tests.train.elastic_program import CHECKPOINT_EVERY
from tests.train.marks import TRAINS, times
from tests.warm_python import WarmPython
from tests.workers.host.launcher.several_hosts import Hosts, kill_part, two_hosts
from tests.workers.host.launcher.test_elastic import losses_of_one_process, steps_of

pytestmark = [*TRAINS, pytest.mark.timeout(2400)]
DEATHS = len(times(long=30, short=3))
NUM_STEPS = (DEATHS + 2) * CHECKPOINT_EVERY
QUICK = Policy(dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2))


@pytest.fixture
def job_python(warm_python: WarmPython) -> str:
    return str(warm_python.daemon)


@pytest.fixture
def hosts(host: HostCase, tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(host, tmp_path, QUICK) as hosts:
        yield hosts


def rendezvous_host(hosts: Hosts) -> HostCase:
    """Where the store of the running attempt is."""
    for case in hosts.cases:
        for order in (case.state_dir / "attempts").glob("*/order.json"):
            if json.loads(order.read_bytes())["node_rank"] == 0:
                return case
    raise AssertionError("no host holds the first part")


def waits(hosts: Hosts, job_id: JobId, fence: int, began_at: int) -> bool:
    said = hosts.cases[0].log(job_id).decode().splitlines()
    return all(f"waits {fence} {rank} {began_at}" in said for rank in (0, 1))


def test_the_rendezvous_host_dies_each_time_and_every_next_attempt_forms_at_once(hosts: Hosts, tmp_path: Path) -> None:
    """Repeated 30 times in ``make soak``."""
    fleet, last_word = hosts.fleet, tmp_path / "last-word"
    job_id = fleet.submit(
        program={
            "script": str(elastic_program.__file__),
            "args": ["--steps", str(NUM_STEPS), "--waits-for", str(last_word)],
        },
        shape={"nodes": 2, "gpus_per_node": 2, "ranks_per_node": 1},
        checkpoint={"folder": str(tmp_path / "shared")},
        stop_grace_s=2,
    )
    for death in range(DEATHS):
        hosts.turn_until(lambda death=death: len(fleet.attempts(job_id)) == death + 1)  # type: ignore[misc]  # bound at once
        fence, began_at = fleet.attempts(job_id)[-1].attempt.fence, death * CHECKPOINT_EVERY
        hosts.turn_until(lambda fence=fence, began_at=began_at: waits(hosts, job_id, fence, began_at))  # type: ignore[misc]  # as above
        kill_part(rendezvous_host(hosts))
    last_word.touch()
    hosts.turn_until(lambda: fleet.job(job_id).finished_at is not None)

    assert fleet.job(job_id).state is JobState.SUCCEEDED, fleet.job(job_id).state_reason
    assert hosts.causes(job_id) == [Cause.NODE_LOST] * DEATHS + [Cause.SUCCEEDED]
    assert fleet.job(job_id).restarts_used == 0
    assert "connectFullMesh" not in hosts.cases[0].log(job_id).decode()
    steps = steps_of(hosts.cases[0], job_id)
    losses = [sum(rank.loss for rank in steps[step]) / len(steps[step]) for step in range(NUM_STEPS)]
    assert losses == pytest.approx(losses_of_one_process(NUM_STEPS), rel=1e-4)
    assert all(view.attempt.state is AttemptState.ENDED for view in fleet.attempts(job_id))
