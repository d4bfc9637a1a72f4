"""Reclaim with real programs: a spot job saves inside its notice, leaves, and continues at the exact next step."""

import importlib.util

import pytest
from sqlalchemy import select

from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Event, Reclaim, TrainingStep
from muster.domain.ids import JobId
from muster.domain.policy.document import DEFAULT_POLICY, DispatchPolicy, Policy
from muster.domain.states import JobState, ReclaimOutcome, ReclaimState
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.slow_at_first import slow_at_first
from tests.warm_python import WarmPython

pytestmark = pytest.mark.timeout(900)
STEPS = 30
BOTH = {"gpus_per_node": 2}
SHORT = "import time; time.sleep(0.2)"
STUBBORN = """
import json, os, signal, socket, sys, time
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
say(type="hello", rank=0, world_size=1)
if json.loads(os.environ["MUSTER_RESUME"])["generation"] is None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(type="checkpoint", step=7, generation="step-00000007/gen-1", status="verified",
        at_unix_ms=int((time.time() - 60) * 1000))
    time.sleep(600)
print(os.environ["MUSTER_RESUME"])
"""


@pytest.fixture
def job_python(warm_python: WarmPython) -> str:
    return str(warm_python.daemon)


def set_notice(host: HostCase, notice_s: float) -> None:
    spot = DEFAULT_POLICY.tier("spot").model_copy(update={"notice_s": notice_s, "min_run_s": 0.0})
    tiers = {**DEFAULT_POLICY.tiers, "spot": spot}
    dispatch = DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2)
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(tiers=tiers, dispatch=dispatch), reason="no need to wait here")


def steps(host: HostCase, job_id: JobId) -> list[tuple[str, int]]:
    query = select(TrainingStep.attempt_id, TrainingStep.step).where(TrainingStep.job_id == job_id)
    with host.fleet.units.read() as session:
        return [
            (attempt, step) for attempt, step in session.execute(query.order_by(TrainingStep.at, TrainingStep.step))
        ]


def only_reclaim(host: HostCase) -> Reclaim:
    with host.fleet.units.read() as session:
        return session.scalars(select(Reclaim)).one()


def run_until_over(host: HostCase, *job_ids: JobId) -> None:
    def are_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return all(host.fleet.job(job_id).finished_at is not None for job_id in job_ids)

    host.turn_until(are_over, timeout_s=300)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="TORCH IS NOT INSTALLED: nothing is trained")
def test_a_training_job_saves_inside_its_notice_and_comes_back_at_the_next_step(host: HostCase) -> None:
    set_notice(host, 120.0)
    args = ["--steps", str(STEPS), "--checkpoint-every", "1000"]
    one_rank = {**BOTH, "ranks_per_node": 1}
    spot = host.fleet.submit(
        tier="spot", shape=one_rank, program={"script": slow_at_first(host.state_dir.parent), "args": args}
    )
    host.fleet.cycle()
    host.turn_until(lambda: len(steps(host, spot)) >= 5, timeout_s=300)
    reserved = host.fleet.submit(
        tier="reserved", shape=BOTH, program={"launcher": "command", "argv": ["/bin/sleep", "0.2"]}
    )
    run_until_over(host, reserved, spot)

    assert [host.fleet.job(job_id).state for job_id in (reserved, spot)] == [JobState.SUCCEEDED] * 2
    assert host.fleet.job(spot).restarts_used == 0
    first, second = (view.attempt for view in host.fleet.attempts(spot))
    (between,) = (view.attempt for view in host.fleet.attempts(reserved))
    assert (first.cause, second.cause) == ("reclaimed", "succeeded")
    assert first.ended_at is not None
    assert between.ended_at is not None
    assert first.ended_at <= between.placed_at, "released, then given to the beneficiary"
    assert between.ended_at <= second.placed_at, "and then back"
    reclaim = only_reclaim(host)
    assert (reclaim.state, reclaim.outcome) == (ReclaimState.RELEASED, ReclaimOutcome.CHECKPOINTED)
    assert first.ended_at < reclaim.deadline_at
    told = steps(host, spot)
    assert [step for _, step in told] == list(range(1, STEPS + 1)), "each step once, in order: none lost, none repeated"
    assert {attempt for attempt, _ in told} == {first.id, second.id}


def test_what_does_not_leave_is_killed_at_the_deadline_and_not_before(host: HostCase) -> None:
    set_notice(host, 2.0)
    spot = host.submit(STUBBORN, tier="spot", shape=BOTH)
    host.turn_until(lambda: host.fleet.attempts(spot)[0].attempt.running_at is not None)
    host.turn_until(lambda: bool(checkpoint_events(host)))
    reserved = host.submit(SHORT, tier="reserved", shape=BOTH)
    run_until_over(host, reserved, spot)
    reclaim = only_reclaim(host)
    assert (reclaim.state, reclaim.outcome) == (ReclaimState.FORCED, ReclaimOutcome.WORK_LOST)
    first = host.fleet.attempts(spot)[0].attempt
    assert first.ended_at is not None
    assert first.ended_at >= reclaim.deadline_at
    assert b'"step-00000007/gen-1"' in host.log(spot), "it continues from the checkpoint before"
    with host.fleet.units.read() as session:
        (event,) = session.scalars(select(Event).where(Event.kind == "reclaim.forced")).all()
    assert event.payload["words"].endswith("it continues from the checkpoint of step 7")


def checkpoint_events(host: HostCase) -> list[Event]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Event).where(Event.kind == "checkpoint.verified")))
