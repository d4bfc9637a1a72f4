"""An elastic job loses a host, continues with the other one, and grows back: the same training all the while."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, ElasticPolicy, Policy
from muster.domain.states import AttemptState, Cause, JobState
from muster.train.data.samples import sample_at
from tests.host_case import HostCase
from tests.train import elastic_program
from tests.train.elastic_program import GLOBAL_BATCH, NUM_SAMPLES, SEED
from tests.train.marks import TRAINS
from tests.warm_python import WarmPython
from tests.workers.host.launcher.several_hosts import Hosts, kill_part, two_hosts

pytestmark = [*TRAINS, pytest.mark.timeout(900)]
QUICK = Policy(
    dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2),
    elastic=ElasticPolicy(grow_after_s=0.1),
)
NUM_STEPS, HANG_AT, ALONE_UNTIL = 20, 6, 10
SHAPE = {"min_nodes": 1, "nodes": 2, "gpus_per_node": 2, "ranks_per_node": 1}


@pytest.fixture
def job_python(warm_python: WarmPython) -> str:
    return str(warm_python.daemon)


@dataclass(frozen=True)
class Step:
    fence: int
    rank: int
    world_size: int
    accumulation: int
    loss: float
    samples: list[int]


@pytest.fixture
def hosts(host: HostCase, tmp_path: Path) -> Iterator[Hosts]:
    with two_hosts(host, tmp_path, QUICK) as hosts:
        yield hosts


def steps_of(host: HostCase, job_id: JobId) -> dict[int, list[Step]]:
    """Return what the ranks reported of each step, in the attempt that did it last, in rank order."""
    said: dict[int, list[Step]] = defaultdict(list)
    for line in host.log(job_id).decode().splitlines():
        if not line.startswith("step "):
            continue
        step, fence, rank, world_size, accumulation, loss, *samples = line.split()[1:]
        said[int(step)].append(
            Step(int(fence), int(rank), int(world_size), int(accumulation), float(loss), [int(one) for one in samples])
        )
    kept: dict[int, list[Step]] = {}
    for number, lines in said.items():
        last = max(line.fence for line in lines)
        kept[number] = sorted((line for line in lines if line.fence == last), key=lambda line: line.rank)
    return kept


def losses_of_one_process(num_steps: int = NUM_STEPS) -> list[float]:
    model, optimizer, data = elastic_program.made()
    losses = []
    for step in range(num_steps):
        numbers = range(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        loss = elastic_program.loss_of(model, data[[sample_at(each, NUM_SAMPLES, SEED) for each in numbers]])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_it_goes_on_with_one_host_and_grows_back_to_two(hosts: Hosts, tmp_path: Path) -> None:
    fleet, (first, second) = hosts.fleet, hosts.cases
    args = ["--steps", str(NUM_STEPS), "--hang-at", str(HANG_AT), "--alone-until", str(ALONE_UNTIL)]
    job_id = fleet.submit(
        program={"script": str(elastic_program.__file__), "args": args},
        shape=SHAPE,
        checkpoint={"folder": str(tmp_path / "shared")},
        stop_grace_s=2,
    )
    hosts.turn_until(lambda: HANG_AT - 1 in steps_of(first, job_id))
    kill_part(second)
    hosts.turn_until(lambda: ALONE_UNTIL - 1 in steps_of(first, job_id))
    hosts.add("gamma")
    hosts.turn_until(lambda: fleet.job(job_id).finished_at is not None)

    assert fleet.job(job_id).state is JobState.SUCCEEDED, fleet.job(job_id).state_reason
    assert hosts.causes(job_id) == [Cause.NODE_LOST, Cause.RESIZE, Cause.SUCCEEDED]
    assert [view.attempt.num_nodes for view in fleet.attempts(job_id)] == [2, 1, 2]
    assert fleet.job(job_id).restarts_used == 0
    steps = steps_of(first, job_id)
    assert sorted(steps) == list(range(NUM_STEPS))
    seen = [sample for step in range(NUM_STEPS) for rank in steps[step] for sample in rank.samples]
    wanted = [sample_at(number, NUM_SAMPLES, SEED) for number in range(NUM_STEPS * GLOBAL_BATCH)]
    assert seen == wanted, "no sample is lost or taken twice"
    sizes = [[(rank.world_size, rank.accumulation) for rank in steps[step]] for step in range(NUM_STEPS)]
    assert sizes[0] == sizes[-1] == [(2, 1), (2, 1)]
    assert sizes[ALONE_UNTIL - 1] == [(1, 2)], "and no more of it at once than two hosts would take"
    losses = [sum(rank.loss for rank in steps[step]) / len(steps[step]) for step in range(NUM_STEPS)]
    assert losses == pytest.approx(losses_of_one_process(), rel=1e-4)
    assert all(view.attempt.state is AttemptState.ENDED for view in fleet.attempts(job_id))


def test_its_program_requests_one_host_and_goes_on_with_it(hosts: Hosts, tmp_path: Path) -> None:
    fleet, (first, _) = hosts.fleet, hosts.cases
    job_id = fleet.submit(
        program={
            "script": str(elastic_program.__file__),
            "args": ["--steps", str(NUM_STEPS), "--ask-at", str(HANG_AT)],
        },
        shape=SHAPE,
        checkpoint={"folder": str(tmp_path / "shared")},
        stop_grace_s=20,
    )
    hosts.turn_until(lambda: fleet.job(job_id).finished_at is not None)

    assert fleet.job(job_id).state is JobState.SUCCEEDED, fleet.job(job_id).state_reason
    assert hosts.causes(job_id) == [Cause.RESIZE, Cause.SUCCEEDED]
    assert [view.attempt.num_nodes for view in fleet.attempts(job_id)] == [2, 1]
    assert (fleet.job(job_id).wanted_nodes, fleet.job(job_id).restarts_used) == (1, 0)
    log = first.log(job_id).decode()
    assert "muster: the job does not continue with 7 hosts: it may have from 1 to 2" in log
    steps = steps_of(first, job_id)
    assert [len(steps[step]) for step in (0, NUM_STEPS - 1)] == [2, 1]
    losses = [sum(rank.loss for rank in steps[step]) / len(steps[step]) for step in range(NUM_STEPS)]
    assert losses == pytest.approx(losses_of_one_process(), rel=1e-4)
