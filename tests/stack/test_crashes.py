"""kill -9 of anything, at every named point on a job's way: nothing lost, nothing run twice, nothing left."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from muster.client.transport import Problem, UnreachableError, send
from muster.db.models import Attempt, Checkpoint, Event, TrainingHost, TrainingStep
from muster.domain.states import CheckpointStatus
from tests.stack.harness import Stack, own_folder, processes_marked, running_stack
from tests.warm_python import WarmPython
from workers.wakeup.sender import WakeupSender

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POINTS = {
    "api": [
        "job.submit.before_commit",
        "job.submit.after_commit",
        "host.heartbeat.before_commit",
        "host.heartbeat.after_commit",
        "host.claim.before_commit",
        "host.claim.after_commit",
        "host.report.before_commit",
        "host.report.after_commit",
        "host.logs.before_commit",
        "host.logs.after_commit",
    ],
    "scheduler": ["placement.place.before_commit", "placement.place.after_commit"],
    "worker-control": [
        "relay.claim.before_commit",
        "relay.claim.after_commit",
        "relay.after_send",
        "relay.settle.before_commit",
        "relay.settle.after_commit",
        "sequencer.sequence.before_commit",
        "sequencer.sequence.after_commit",
        "sealer.seal.before_commit",
        "sealer.seal.after_commit",
        "reconcile.contact.before_commit",
    ],
}


NUM_STEPS = 40
STATES = """
import json, os, socket, sys, time
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
say(type="hello", rank=0, world_size=1)
for step in range(1, int(sys.argv[1]) + 1):
    say(type="step", step=step, loss=1.0, step_s=0.1)
    if step == 20:
        name = f"step-00000020/gen-{os.environ['MUSTER_FENCE']}"
        say(type="checkpoint", step=20, generation=name, status="committed")
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def folder(server_folder: Path) -> Path:
    return own_folder(server_folder, "crashes")


@pytest.fixture(scope="module")
def stack(folder: Path, warm_stack: WarmPython, warm_python: WarmPython) -> Iterator[Stack]:
    with running_stack(folder, warm_stack, warm_python) as stack:
        yield stack


@pytest.mark.parametrize("process", POINTS)
def test_death_at_each_point_loses_nothing_and_repeats_nothing(stack: Stack, process: str) -> None:
    """Each start after a death is armed with the next point, which may well fall within the same job."""
    first, *others = POINTS[process]
    before = stack.kills[process]
    stack.children[process].stop()
    stack.armed[process] = others
    stack.spawn(process, failpoints=f"{first}=kill@1")
    for number in range(len(POINTS[process])):
        name = f"{process}-{number}"
        job_id = stack.submit(name, seconds=0.1)
        stack.wait_for(job_id, "SUCCEEDED")
        stack.wait(lambda died=before + number + 1: stack.kills[process] >= died)  # type: ignore[misc]  # bound at once
        assert stack.witness(name) == ["start", "end"], name
        assert stack.submit(name, seconds=0.1) == job_id, "one key, one job"
    stack.require_order()


@pytest.mark.parametrize("point", ["job.cancel.before_commit", "job.cancel.after_commit"])
def test_a_cancellation_interrupted_by_death_is_carried_out_once_queried_again(stack: Stack, point: str) -> None:
    name = f"cancelled-{point}"
    job_id = stack.submit(name, seconds=600)
    stack.wait_for_start(name)
    before = stack.kills["api"]
    stack.children["api"].stop()
    stack.spawn("api", failpoints=f"{point}=kill@1")
    stack.wait(lambda: bool(stack.client.cancel_job(job_id)))
    assert stack.kills["api"] > before
    job = stack.wait_for(job_id, "CANCELLED")
    assert [item["cause"] for item in job["attempts"]] == ["cancelled"]
    assert stack.witness(name) == ["start"]
    stack.require_order()


@pytest.mark.parametrize("point", ["reconcile.job.before_commit", "reconcile.job.after_commit"])
def test_a_job_that_waits_for_its_next_try_gets_it_once(stack: Stack, point: str) -> None:
    name = f"tried-{point}"
    before = stack.kills["worker-control"]
    stack.children["worker-control"].stop()
    stack.spawn("worker-control", failpoints=f"{point}=kill@1")
    job_id = stack.submit(name, seconds=600)  # its first run ends with its supervisor alone
    stack.wait_for_start(name)
    stack.kill_supervisor(job_id)
    job = stack.wait_for(job_id, "SUCCEEDED")
    assert stack.kills["worker-control"] > before
    assert [item["cause"] for item in job["attempts"]] == ["node_lost", "succeeded"]
    assert stack.witness(name) == ["start", "start", "end"]
    stack.require_order()


@pytest.mark.parametrize("point", ["reconcile.attempt.before_commit", "reconcile.attempt.after_commit"])
def test_a_placed_attempt_whose_host_is_away_waits_through_a_death(stack: Stack, point: str) -> None:
    name = f"away-{point}"
    before = stack.kills["worker-control"]
    stack.wait(stack.is_host_live)
    stack.children.pop("worker-control").stop()  # it would note that the host is away, which then is given nothing
    stack.children.pop("worker-host").stop()
    job_id = stack.submit(name, seconds=0.1)
    stack.wait(lambda: bool(stack.client.job(job_id)["attempts"]))
    stack.spawn("worker-control", failpoints=f"{point}=kill@1")
    stack.wait(lambda: stack.kills["worker-control"] > before)
    stack.spawn("worker-host")
    stack.wait_for(job_id, "SUCCEEDED")
    assert stack.witness(name) == ["start", "end"]
    stack.require_order()


def test_a_killed_host_worker_finds_its_program_again(stack: Stack) -> None:
    job_id = stack.submit("adopted", seconds=3)
    stack.wait_for_start("adopted")
    stack.kill("worker-host")
    job = stack.wait_for(job_id, "SUCCEEDED")
    assert len(job["attempts"]) == 1
    assert stack.witness("adopted") == ["start", "end"]
    stack.require_order()


def test_words_of_a_training_count_once_though_the_host_worker_dies_as_it_reports_them(stack: Stack) -> None:
    """Three times: the control plane has committed, and the host worker has not yet written down that it has."""
    before = stack.kills["worker-host"]
    stack.children["worker-host"].stop()
    stack.armed["worker-host"] = ["training_relay.after_answer", "training_relay.after_answer"]
    stack.spawn("worker-host", failpoints="training_relay.after_answer=kill@2")
    program = {"launcher": "command", "argv": [sys.executable, "-c", STATES, str(NUM_STEPS)]}
    job_id = stack.submit("speaks", program=program)
    stack.wait_for(job_id, "SUCCEEDED")
    told = select(TrainingStep.step).where(TrainingStep.job_id == job_id).order_by(TrainingStep.step)
    refused = select(TrainingHost.num_refused).join(Attempt, Attempt.id == TrainingHost.attempt_id)
    committed = select(Checkpoint.status).where(Checkpoint.job_id == job_id)

    def has_all() -> bool:
        with Session(stack.engine) as session:
            return session.scalars(told).all() == list(range(1, NUM_STEPS + 1))

    stack.wait(has_all)
    assert stack.kills["worker-host"] >= before + 3
    with Session(stack.engine) as session:
        assert session.scalars(committed).all() == [CheckpointStatus.COMMITTED]
        assert session.scalars(refused.where(Attempt.job_id == job_id)).all() == [0]
        kinds = select(Event.kind).where(Event.kind == "checkpoint.committed", Event.payload["job_id"].astext == job_id)
        assert len(session.scalars(kinds).all()) == 1
    stack.require_order()


def test_a_killed_supervisor_takes_its_program_along_and_the_job_runs_again(stack: Stack) -> None:
    job_id = stack.submit("orphaned", seconds=600)
    stack.wait_for_start("orphaned")
    stack.kill_supervisor(job_id)
    job = stack.wait_for(job_id, "SUCCEEDED")
    assert [item["cause"] for item in job["attempts"]] == ["node_lost", "succeeded"]
    assert job["restarts_used"] == 0
    assert stack.witness("orphaned") == ["start", "start", "end"], "the first never came to its end"
    stack.require_order()


def test_the_database_may_die_while_a_program_runs(stack: Stack) -> None:
    job_id = stack.submit("database", seconds=3)
    stack.wait_for_start("database")
    stack.postgres.kill()
    with pytest.raises((Problem, UnreachableError)):
        send(stack.client._http, "GET", "/v1/whoami")  # without the client's patience
    time.sleep(0.5)
    stack.postgres.start()
    stack.wait_for(job_id, "SUCCEEDED")
    assert stack.witness("database") == ["start", "end"]
    stack.require_order()


def test_the_broker_may_die_or_forget_everything(stack: Stack) -> None:
    stack.broker.kill()
    dark = stack.submit("dark", seconds=0.2)
    stack.wait_for(dark, "SUCCEEDED")
    stack.broker.start()
    forgotten = stack.submit("forgotten", seconds=0.5)
    stack.broker.flush_all()
    stack.wait_for(forgotten, "SUCCEEDED")
    assert stack.witness("dark") == stack.witness("forgotten") == ["start", "end"]
    stack.require_order()


def test_a_killed_celery_worker_costs_no_program_and_comes_back(stack: Stack) -> None:
    """The host's Celery worker only listens for wake-ups: no running program depends on it."""
    job_id = stack.submit("unheard", seconds=3)
    stack.wait_for_start("unheard")
    (listener,) = processes_marked(f"workers.wakeup.listener {stack.node_id}")
    os.kill(listener, signal.SIGKILL)
    later = stack.submit("unrung", seconds=0.2)
    stack.wait(lambda: len(set(processes_marked(f"workers.wakeup.listener {stack.node_id}")) - {listener}) == 1)
    for name, each in (("unheard", job_id), ("unrung", later)):
        assert len(stack.wait_for(each, "SUCCEEDED")["attempts"]) == 1
        assert stack.witness(name) == ["start", "end"]
    stack.require_order()


def test_fifty_wakeups_at_once_start_one_program(stack: Stack) -> None:
    """A wake-up is how a start is delivered. They come through the broker, before the attempt is placed and after."""
    ringers = [WakeupSender(stack.broker.url) for _ in range(10)]

    def wake(wakeup_sender: WakeupSender) -> None:
        for _ in range(5):
            wakeup_sender.wake(stack.node_id, "whichever")

    with ThreadPoolExecutor(len(ringers)) as pool:
        job_id = stack.submit("rung", seconds=2)
        list(pool.map(wake, ringers))
        stack.wait(lambda: len(stack.client.job(job_id)["attempts"]) == 1)
        list(pool.map(wake, ringers))
    job = stack.wait_for(job_id, "SUCCEEDED")
    assert len(job["attempts"]) == 1
    assert stack.witness("rung") == ["start", "end"]
    for ringer in ringers:
        ringer.close()
    stack.require_order()


def test_two_schedulers_place_each_job_once(stack: Stack) -> None:
    first = stack.children["scheduler"]
    stack.spawn("scheduler")
    jobs = [stack.submit(f"pair-{number}", seconds=0.05) for number in range(12)]
    for number, job_id in enumerate(jobs):
        stack.wait_for(job_id, "SUCCEEDED")
        assert stack.witness(f"pair-{number}") == ["start", "end"]
    first.stop()
    stack.require_order()
