"""Step 4: a reserved job reclaims capacity from a spot job: notice, checkpoint, release; and the spot job returns."""

import time
from pathlib import Path
from typing import Final

from local.tour import planning, waiting
from local.tour.failing import CHECKPOINT_EVERY, STEPS
from local.tour.world import BROKER, TERMINAL, Document, World, log_of, seconds_of, training

SPOT_STEPS: Final = 50
WHOLE_HOST: Final = 8
RESERVED_GPUS: Final = 7
"""GPUs of each host, so that there are two places to reclaim: the spot job's, and its rival's."""
RIVAL: Final = "tour-rival"
_LOST: Final = "a GPU, a rank, a torchrun, a host, workers and the broker"


def reclaim(world: World, interrupted: Document, step_sleep_s: float) -> str:
    """Run the step. ``interrupted``: the job of the steps before, whose loss curve an undisturbed run must equal.

    Returns the id of the spot job, which is placed again, for ``require_returned``.
    """
    world.teller.stage(
        4,
        "A reserved job needs the hosts that a spot job holds",
        "reclaim is a contract: notice with deadline, reason and beneficiary; checkpoint; release; return",
    )
    spot, rival, door = _start_spot(world, 2 * step_sleep_s)
    spec = training(
        "reserved-run",
        steps=STEPS,
        nodes=2,
        gpus_per_node=RESERVED_GPUS,
        ranks_per_node=2,
        tier="reserved",
        checkpoint_every=CHECKPOINT_EVERY,
        step_sleep_s=0.0,
    )
    plan = _planned(world, spec, spot)
    broker = world.kill(BROKER) if BROKER in world.servers else None
    reserved_id = world.submit(world.tenant, spec)["id"]
    reclaimed = _noticed(world, reserved_id, plan)
    if broker is not None:
        world.came_back(BROKER, broker)
    _released(world, spot["id"], reclaimed)
    _settled(world, reclaimed)
    reserved = world.wait_for_end(reserved_id, "the reserved job")
    door.touch()
    world.until(
        "the other spot job ends",
        lambda: world.operator.job(rival["id"]),
        lambda found: found["state"] in TERMINAL,
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    attempt = reserved["attempts"][0]
    world.teller.measured(
        "reserved: submit → running", seconds_of(attempt["running_at"]) - seconds_of(reserved["created_at"])
    )
    _require_same_curve(world, interrupted["id"], reserved_id)
    return _placed_again(world, spot["id"])


def _placed_again(world: World, spot_id: str) -> str:
    world.until(
        "the spot job is placed again",
        lambda: world.tenant.job(spot_id)["attempts"],
        lambda found: len(found) > 1,
        seen=lambda _: world.progress(world.tenant.job(spot_id)),
        log="scheduler",
    )
    return spot_id


def _start_spot(world: World, step_sleep_s: float) -> tuple[Document, Document, Path]:
    """Start the spot job on all GPUs of one model, and a rival on the other model's that saves nothing.

    Returns both jobs, and the file that ends the rival.
    """
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
        "the spot job is placed",
        lambda: world.tenant.job(job_id)["attempts"],
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )
    rival, door = _start_rival(world)
    world.until(
        "the spot job trains and has a checkpoint",
        lambda: world.saved(job_id),
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )
    running_at_s = seconds_of(rival["attempts"][-1]["running_at"])
    world.until(
        "both may be reclaimed",
        time.time,
        lambda now_s: now_s > running_at_s + world.min_run_s + 1,
        seen=lambda now_s: f"{RIVAL} has run for {now_s - running_at_s:.0f} s",
        log="scheduler",
    )
    job = world.tenant.job(job_id)
    hosts, others = (planning.names_of(one["attempts"][-1]["hosts"]) for one in (job, rival))
    world.teller.write(f"a spot job trains on all 16 GPUs of {hosts}; {RIVAL} has one on {others}, which saves nothing")
    return job, rival, door


def _start_rival(world: World) -> tuple[Document, Path]:
    """Start another tenant's job: a rule reclaims no more from one tenant at once than its smallest job holds."""
    named = {tenant["name"]: tenant["id"] for tenant in world.operator.tenants()}
    tenant_id = named.get(RIVAL) or world.operator.create_tenant(RIVAL)["id"]
    spec, door = waiting.until_opened(world, "sweep", nodes=2, topology={"required": "rack"}, tenant_id=tenant_id)
    job_id = world.submit(world.operator, spec)["id"]
    rival = world.until(
        "the other spot job runs",
        lambda: world.operator.job(job_id),
        lambda found: bool(found["attempts"]) and found["attempts"][-1]["running_at"] is not None,
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    return rival, door


def _planned(world: World, spec: Document, spot: Document) -> Document:
    """Return the plan once the rival has more to lose, which it has after some seconds."""
    planning.show_plan(world, spec)
    plan: Document = world.until(
        "the job with the least to lose would be reclaimed",
        lambda: planning.of_tenant(world, spec),
        lambda found: [victim["job_id"] for victim in found["victims"]] == [spot["id"]],
        seen=lambda found: f"{found['outcome']}: {found['victims']}",
        log="scheduler",
    )
    victim = plan["victims"][0]
    world.require(
        "its plan names the job that would be reclaimed, the cost, and its own start",
        f"{plan['outcome']}: spot-run's {victim['num_gpus']} GPUs after {victim['notice_s']:.0f} s of notice, "
        f"{victim['cost_gpu_s']:.0f} GPU-seconds lost; it starts on {planning.names_of(plan['hosts'])}",
        "scheduler",
        is_so=plan["outcome"] == "reclaims" and victim["cost_gpu_s"] > 0 and plan["starts_at"] is not None,
    )
    return plan


def _noticed(world: World, reserved_id: str, plan: Document) -> Document:
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
    victim, best = plan["victims"][0], found["runner_up"] or {}
    world.require(
        "submitted, it does as planned; of two jobs it reclaims the one that loses less",
        f"{found['victim_job_name']}: {found['cost_gpu_s']:.0f} GPU-seconds"
        + (f"; the other would have lost {best['cost_gpu_s']:.0f}" if best else "; there was no other"),
        "scheduler",
        is_so=(victim["job_id"], victim["num_gpus"], victim["notice_s"])
        == (found["victim_job_id"], found["num_gpus"], found["notice_s"])
        and found["cost_gpu_s"] <= best.get("cost_gpu_s", 0.0),
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
    world.teller.measured("notice → released", took_s, reclaimed["notice_s"], is_required=True)
    world.require(
        "it saved inside the notice, and the job is not charged for it",
        f"checkpoint of step {saved[0]['step']}, cause {attempt['cause']}, {job['restarts_used']} restarts used"
        if saved
        else f"no checkpoint since the notice; cause {attempt['cause']}",
        log_of(attempt),
        is_so=bool(saved) and job["restarts_used"] == 0,
    )


def _settled(world: World, reclaimed: Document) -> None:
    """Check the contract's end: its outcome, and the actual loss."""
    done = world.until(
        "the reclaim is settled",
        lambda: world.operator.reclaim(reclaimed["id"]),
        lambda found: found["state"] == "RELEASED" and found["outcome"] is not None,
        seen=lambda found: f"{found['state']}: {found['settled_why']}",
        log="worker-control",
    )
    world.require(
        "the contract is settled: its deadline never moved, and what was lost is counted",
        f"{done['state']}, {done['outcome']}, {done['lost_gpu_s']:.0f} GPU-seconds lost",
        "worker-control",
        is_so=done["outcome"] == "checkpointed" and done["deadline_at"] == reclaimed["deadline_at"],
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


def require_returned(world: World, spot_id: str) -> None:
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
