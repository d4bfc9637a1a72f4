"""Step 4: a reserved job takes capacity back from a spot job: notice, checkpoint, release; and the spot job returns."""

from typing import Final

from muster.embedded.tour.failing import CHECKPOINT_EVERY, STEPS
from muster.embedded.tour.world import BROKER, Document, World, log_of, seconds_of, training

SPOT_STEPS: Final = 50
WHOLE_HOST: Final = 8
_LOST: Final = "a GPU, a rank, a torchrun, a host, workers and the broker"


def reclaim(world: World, interrupted: Document, step_sleep_s: float) -> None:
    """``interrupted``: the job of the steps before, whose loss curve an undisturbed run must equal."""
    world.teller.stage(
        4,
        "A reserved job needs the hosts that a spot job holds",
        "reclaim is a contract: notice with deadline, reason and beneficiary; checkpoint; release; return",
    )
    spot = _start_spot(world, 2 * step_sleep_s)
    broker = world.kill(BROKER) if BROKER in world.servers else None
    spec = training(
        "reserved-run",
        steps=STEPS,
        nodes=2,
        gpus_per_node=WHOLE_HOST,
        ranks_per_node=2,
        tier="reserved",
        checkpoint_every=CHECKPOINT_EVERY,
        step_sleep_s=0.0,
    )
    reserved_id = world.submit(world.tenant, spec)["id"]
    reclaimed = _noticed(world, reserved_id)
    if broker is not None:
        world.came_back(BROKER, broker)
    _released(world, spot["id"], reclaimed)
    reserved = world.wait_for_end(reserved_id, "the reserved job")
    attempt = reserved["attempts"][0]
    world.teller.measured(
        "reserved: submit → running", seconds_of(attempt["running_at"]) - seconds_of(reserved["created_at"])
    )
    _require_same_curve(world, interrupted["id"], reserved_id)
    _returned(world, spot["id"])


def _start_spot(world: World, step_sleep_s: float) -> Document:
    spec = training(
        "spot-run",
        steps=SPOT_STEPS,
        nodes=2,
        gpus_per_node=WHOLE_HOST,
        ranks_per_node=1,
        tier="spot",
        step_sleep_s=step_sleep_s,
    )
    job_id = world.submit(world.tenant, spec)["id"]
    world.until(
        "the spot job trains and has a checkpoint",
        lambda: world.saved(job_id),
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )
    job = world.tenant.job(job_id)
    hosts = ", ".join(host["node_name"] for host in job["attempts"][0]["hosts"])
    world.teller.say(f"a spot job trains on all 16 GPUs of {hosts}")
    return job


def _noticed(world: World, reserved_id: str) -> Document:
    found: Document = world.until(
        "the spot job is given notice",
        lambda: [one for one in world.operator.reclaims() if one["beneficiary_job_id"] == reserved_id],
        bool,
        seen=lambda _: world.progress(world.tenant.job(reserved_id)),
        log="scheduler",
    )[0]
    world.require(
        "notice with deadline, reason and beneficiary",
        f"{found['notice_s']:.0f} s, for {found['beneficiary_job_name']}: {found['reason']}",
        "scheduler",
        is_so=found["notice_s"] > 0 and bool(found["reason"]) and bool(found["beneficiary_job_name"]),
    )
    return found


def _released(world: World, spot_id: str, reclaimed: Document) -> None:
    job = world.until(
        "the spot job has left",
        lambda: world.tenant.job(spot_id),
        lambda found: found["attempts"][0]["ended_at"] is not None,
        seen=world.progress,
        log="scheduler",
    )
    attempt = job["attempts"][0]
    saved = [
        one for one in world.saved(spot_id) if seconds_of(one["committed_at"]) >= seconds_of(reclaimed["notified_at"])
    ]
    took_s = seconds_of(attempt["ended_at"]) - seconds_of(reclaimed["notified_at"])
    world.teller.measured("notice → released", took_s, reclaimed["notice_s"], is_promise=True)
    world.require(
        "it saved inside the notice, and the job is not charged for it",
        f"checkpoint of step {saved[0]['step']}, cause {attempt['cause']}, {job['restarts_used']} restarts used"
        if saved
        else f"no checkpoint since the notice; cause {attempt['cause']}",
        log_of(attempt),
        is_so=bool(saved) and job["restarts_used"] == 0,
    )


def _require_same_curve(world: World, interrupted_id: str, undisturbed_id: str) -> None:
    one = [(row["step"], row["loss"]) for row in world.tenant.steps(interrupted_id)]
    other = [(row["step"], row["loss"]) for row in world.tenant.steps(undisturbed_id)]
    first = next((index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    world.require(
        f"the job that lost {_LOST} has this undisturbed one's loss curve, bit for bit",
        f"{len(one)} equal losses, the last {one[-1][1]!r}" if one == other else f"they part at step {first}",
        "scheduler",
        is_so=one == other,
    )


def _returned(world: World, spot_id: str) -> None:
    job = world.wait_for_end(spot_id, "the spot job, back on its hosts,")
    saved = {one["step"] for one in world.saved(spot_id)}
    rows = list(world.tenant.steps(spot_id))
    second = [row["step"] for row in rows if row["attempt_id"] == job["attempts"][-1]["id"]]
    world.require(
        "it came back at the exact next step and trained each step",
        f"steps {second[0]} to {second[-1]} in attempt {job['attempts'][-1]['number']}",
        log_of(job["attempts"][-1]),
        is_so=second[0] - 1 in saved and [row["step"] for row in rows] == list(range(1, SPOT_STEPS + 1)),
    )
