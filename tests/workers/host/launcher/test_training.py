"""What a program reports of its training reaches the control plane once; the next attempt continues from it."""

import hashlib
import json

import pytest
from sqlalchemy import select

from control.policy.policies import ACTIVATE, store_policy
from muster.db.models import Attempt, Checkpoint, Event, TrainingHost, TrainingRank, TrainingStep
from muster.domain.ids import JobId
from muster.domain.policy.document import DispatchPolicy, Policy
from muster.domain.states import CheckpointStatus, JobState
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase

STATES = """
import json, os, socket, sys, time
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
fence = os.environ["MUSTER_FENCE"]
say(type="hello", rank=0, world_size=1, pid=os.getpid())
"""
TRAINS = (
    STATES
    + """
print(os.environ["MUSTER_RESUME"], os.environ["MUSTER_CHECKPOINT_DIR"], flush=True)
for step in range(1, 31):
    say(type="step", step=step, loss=1.0 / step, step_s=0.01)
    if step in (5, 28):
        place = f"step-{step:08d}/gen-{fence}"
        say(type="checkpoint", step=step, generation=place, status="committed", bytes=10, at_unix_ms=1_800_000_000_000,
            lineage={"code_sha256": "c" * 64 if step == 5 else "no hash", "world_size": 1, "new_field": 1})
        say(type="checkpoint", step=step, generation=place, status="verified")
parts = dict.fromkeys(["data_s", "forward_s", "backward_s", "collective_s", "optimizer_s", "other_s"], 0.5)
for step in (12, 30):
    say(type="pace", step=step, num_steps=step, **parts, checkpoint_s=step, tokens_per_s=100, mfu=None, new_field=1,
        samples=8)
say(type="pace", step=3, num_steps=0, **parts, checkpoint_s=0); say(type="pace", step=3, num_steps=1)
for _ in range(2):
    say(type="warning", code="same_samples", message="2 of 2 ranks began with the very same samples")
interval = {"type": "checkpoint_interval", "step": 9, "interval_s": 60, "stall_s": 0.5, "save_s": 2, "step_s": 0.1}
say(**interval, bound="none", mtbf_s=3600, failures_per_gpu_hour=json.loads(os.environ["MUSTER_CHECKPOINT_INTERVAL"])[
    "failures_per_gpu_hour"], num_gpus=1)
say(**interval, bound="none")
say(type="step", step="many"); say(type="checkpoint", step=1, generation="../../etc", status="committed")
say(type="checkpoint_unreadable", generation="step-00000001/gen-1", why="EIO")
say(type="of another release"); say(type="step", step=1, loss="\\u0000")
"""
)


def checkpoints(host: HostCase, job_id: JobId) -> list[Checkpoint]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step)))


def test_progress_and_checkpoints_arrive_and_nonsense_is_counted(host: HostCase) -> None:
    job_id = host.submit(TRAINS)
    assert host.run(job_id) is JobState.SUCCEEDED
    host.run_until_clean()
    with host.fleet.units.read() as session:
        rank = session.scalars(select(TrainingRank)).one()
        assert (rank.rank, rank.step, rank.world_size) == (0, 30, 1)
        losses = session.scalars(select(TrainingStep.loss).order_by(TrainingStep.step)).all()
        assert losses == [1.0 / step for step in range(1, 31)]
        paces = {
            step: (pace["checkpoint_s"], pace["tokens_per_s"], pace["mfu"])
            for step, pace in session.execute(select(TrainingStep.step, TrainingStep.pace))
            if pace is not None
        }
        assert paces == {12: (12.0, 100.0, None), 30: (30.0, 100.0, None)}
        assert rank.pace is not None
        assert (rank.pace["num_steps"], rank.pace["samples"], rank.pace["padding"]) == (30, 8, None)
        assert rank.warnings == {"same_samples": "2 of 2 ranks began with the very same samples"}
        (warned,) = session.scalars(select(Event).where(Event.kind == "attempt.warned"))
        assert warned.payload["reason"] == "2 of 2 ranks began with the very same samples"
        assert session.scalars(select(TrainingHost.num_refused)).one() == 7
        interval = session.scalars(select(Attempt.checkpoint_interval)).one()
        assert interval is not None
        assert (interval["interval_s"], interval["failures_per_gpu_hour"]) == (60.0, pytest.approx(1 / 50_000))
        (told,) = session.scalars(select(Event).where(Event.kind == "attempt.checkpoint_interval"))
        assert told.payload["reason"].startswith("a checkpoint every 60 s, about 600 steps: which costs the least")
    first, last = checkpoints(host, job_id)
    assert (first.status, last.status) == (CheckpointStatus.GOOD, CheckpointStatus.VERIFIED)
    assert first.num_bytes == 10
    told = first.manifest["lineage"]
    assert (told["code_sha256"], told["world_size"], told["git_commit"]) == ("c" * 64, 1, None)
    assert last.manifest["lineage"] is None, "what does not fit costs no checkpoint"


def test_lines_sent_again_after_a_lost_answer_have_effect_once(host: HostCase) -> None:
    job_id = host.submit(STATES + "say(type='step', step=1, loss=2.0); time.sleep(600)", stop_grace_s=1)
    host.turn_until(lambda: bool(steps(host)))
    (folder,) = (host.state_dir / "attempts").iterdir()
    (folder / "logs_sent.json").unlink()  # as if the launcher had died before it wrote down the answer
    host.restart()
    host.relay.drain_all()
    host.relay.drain_all()
    assert steps(host) == [1]
    with host.fleet.units.read() as session:
        assert session.scalars(select(TrainingHost.num_refused)).one() == 0
    host.fleet.cancel(job_id)
    host.run(job_id)


def steps(host: HostCase) -> list[int]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(TrainingStep.step)))


def test_the_next_attempt_is_reported_the_newest_generation_that_nothing_states_against(host: HostCase) -> None:
    fails_once = (
        STATES
        + """
print("resume", os.environ["MUSTER_RESUME"], flush=True)
if json.loads(os.environ["MUSTER_RESUME"])["generation"] is None:
    for step in (10, 20):
        say(type="checkpoint", step=step, generation=f"step-{step:08d}/gen-{fence}", status="committed")
    say(type="checkpoint_rejected", generation=f"step-{20:08d}/gen-{fence}", why="one byte differs")
    sys.exit(3)
"""
    )
    quick = DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2)
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, Policy(dispatch=quick), reason="no need to wait here")
    job_id = host.submit(fails_once, restart={"max_restarts": 1})

    def is_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return host.fleet.job(job_id).finished_at is not None

    host.turn_until(is_over)
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED
    first, second = (json.loads(line.split(b" ", 1)[1]) for line in host.log(job_id).splitlines() if b"resume" in line)
    assert (first["generation"], first["refuse"]) == (None, [])
    good, bad = checkpoints(host, job_id)
    assert (second["generation"], second["refuse"]) == (good.generation, [bad.generation])
    assert (bad.status, bad.reason) == (CheckpointStatus.REJECTED, "one byte differs")


def test_a_refused_generation_is_reported_also_where_its_commit_was_never_received_of(host: HostCase) -> None:
    job_id = host.submit(
        STATES + "say(type='checkpoint_rejected', generation='step-00000020/gen-1', why='one byte differs')"
    )
    assert host.run(job_id) is JobState.SUCCEEDED
    host.run_until_clean()
    with host.fleet.units.read() as session:
        (told,) = session.scalars(select(Event).where(Event.kind == "checkpoint.rejected"))
    assert told.payload == {"job_id": job_id, "generation": "step-00000020/gen-1", "reason": "one byte differs"}


def test_words_that_are_no_message_hold_up_none(host: HostCase) -> None:
    """Numbers beyond JSON, surrogates, nesting without end, ranks that are not its own: each is skipped."""
    job_id = host.submit(
        STATES
        + """
channel.sendall(b'{"type": "step", "step": 1, "loss": NaN}\\n{"type": "step", "step": 1, "loss": 1e999}\\n')
channel.sendall(b'{"type": "step", "step": 1' + b'0' * 400 + b'}\\n{"type": "outcome", "message": "\\\\ud800"}\\n')
channel.sendall(b'{"type": "step", "x": ' + b'[' * 30000 + b'\\n' + b'[' * 60000 + b']' * 60000 + b'\\n')
for rank in (-1, 1, 2**40, True, [0], None): say(type="hello", rank=rank, world_size=1)
say(type="step", step=2, loss=0.5)
print("continued", flush=True)
"""
    )
    assert host.run(job_id) is JobState.SUCCEEDED
    assert b"continued" in host.log(job_id)
    host.run_until_clean()
    with host.fleet.units.read() as session:
        assert session.scalars(select(TrainingRank.rank)).all() == [0]
    assert steps(host) == [2]


def test_a_program_is_reported_where_the_host_keeps_copies_and_whose_specification_it_is(host: HostCase) -> None:
    host.scratch["MUSTER_SCRATCH_DIR"] = "/local/scratch"
    job_id = host.submit("import os; print(os.environ['MUSTER_SCRATCH_DIR'], os.environ['MUSTER_SPEC_SHA256'])")
    assert host.run(job_id) is JobState.SUCCEEDED
    spec = json.dumps(host.fleet.job(job_id).spec, sort_keys=True)
    assert host.log(job_id).split() == [b"/local/scratch", hashlib.sha256(spec.encode()).hexdigest().encode()]
