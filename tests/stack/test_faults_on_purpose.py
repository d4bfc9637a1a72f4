"""Each kind of fault on purpose on a real stack is named, and each job succeeds. So does the watch tour."""

import io
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from local.hosts import LocalHost
from local.tour import watching
from local.tour.output import Teller
from local.tour.world import EventLog, World
from muster.client.rest import RestClient
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.policy.watch import KnownLimits, WatchPolicy
from muster.train.runtime import faults
from tests.stack.harness import POLICY, Stack, own_folder, running_stack
from tests.ten_faults import JOBS, SHORT_WINDOW_S, FaultyJob
from tests.train.marks import TRAINS
from tests.warm_python import WarmPython

pytestmark = [*TRAINS, pytest.mark.timeout(900)]
WATCH = WatchPolicy(
    known=KnownLimits(step_s=8, data_s=8, eval_s=8), stragglers=StragglerPolicy(window_s=SHORT_WINDOW_S)
)


@pytest.fixture(scope="module")
def stack(server_folder: Path, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Stack]:
    folder = own_folder(server_folder, "faults")
    policy = POLICY.model_copy(update={"watch": WATCH})
    with running_stack(folder, warm_stack, warm_python, policy, num_gpus=16) as stack:
        yield stack


def sentences_about(stack: Stack, job_id: str) -> list[str]:
    """Return what the control plane states about a job: proofs of its attempts, verdicts, and reasons of events."""
    job = stack.client.job(job_id)
    said = [attempt["proof"] or "" for attempt in job["attempts"]]
    said += [verdict["sentence"] for verdict in stack.client.verdicts(job=job_id)]
    said += [f"{row['generation']}: {row['reason']}" for row in stack.client.checkpoints(job_id)]
    for attempt in job["attempts"]:
        for event in stack.client.newest_events(subject_id=attempt["id"]):
            why = event["payload"].get("reason") or event["payload"].get("why") or ""
            said.append(f"{event['kind']}: {event['payload'].get('generation', '')} {why}")
    return said


def submit(stack: Stack, job: FaultyJob) -> str:
    shape = {"gpus_per_node": job.num_ranks}
    body = {"name": job.name, "program": job.program, "shape": shape, **job.fields}
    return stack.client.submit_job(body)["id"]


def test_each_kind_is_named_and_survived(stack: Stack) -> None:
    assert {kind for job in JOBS for kind in job.kinds} == set(faults._DOING)
    submitted = [(job, submit(stack, job)) for job in JOBS]
    for job, job_id in submitted:
        ended = stack.wait_for(job_id, "SUCCEEDED")
        said = sentences_about(stack, job_id)
        assert tuple(attempt["cause"] for attempt in ended["attempts"]) == job.ends, (job.name, said)
        assert job.unnamed(said) == set(), (job.name, said)
    stack.require_order()


def test_the_scenes_of_the_watch_tour_hold(stack: Stack) -> None:
    said = io.StringIO()
    key = stack.identities.operator_key_file.read_text().strip()
    with RestClient(f"http://127.0.0.1:{stack.port}", key) as operator:
        world = World(
            operator=operator,
            tenant=stack.client,
            events=EventLog(operator),
            teller=Teller(Console(file=said, width=300)),
            state_dir=stack.folder,
            faults=stack.folder / "faults.json",
            taint_margin_s=3.0,
            min_run_s=0.0,
            hosts=(LocalHost("local", "h100", 16, "rack-1", 0, stack.folder / "host"),),
            children={},
            servers={},
            stop=threading.Event(),
        )
        watching.show(world, tuple(replace(scene, step_sleep_s=0.1) for scene in watching.SCENES))
    printed = said.getvalue()
    for scene in watching.SCENES:
        assert f"{scene.source} names rank {scene.culprit}: " in printed
        assert scene.injected in printed
