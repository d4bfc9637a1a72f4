"""Steps 2 and 3: a gang trains, loses a GPU, and continues from before the fault."""

import time
from typing import Final

from local.tour import killing, planning
from local.tour.world import Document, World, log_of, seconds_of, training

STEPS: Final = 65
CHECKPOINT_EVERY: Final = 5
STEPS_BEFORE_THE_FAULT: Final = 20
XID: Final = 95
QUARANTINE_BAR_S: Final = 2.0


def train(world: World, step_sleep_s: float) -> Document:
    """Return the job, running and with a falling loss."""
    world.teller.stage(
        2,
        "A tenant's job is placed as a whole gang and trains",
        "2 hosts × 6 GPUs of one cohort in one rack; 2 ranks a host by torchrun, DDP over gloo",
    )
    spec = training(
        "transformer",
        steps=STEPS,
        nodes=2,
        gpus_per_node=6,
        ranks_per_node=2,
        checkpoint_every=CHECKPOINT_EVERY,
        step_sleep_s=step_sleep_s,
        restart={"max_restarts": killing.RESTARTS},
    )
    plan = planning.planned(world, spec)
    job_id = world.submit(world.tenant, spec)["id"]
    job = world.until(
        "the gang is placed",
        lambda: world.tenant.job(job_id),
        lambda found: bool(found["attempts"]),
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    attempt = job["attempts"][0]
    log = log_of(attempt)
    world.teller.measured("submit → placed", seconds_of(attempt["placed_at"]) - seconds_of(job["created_at"]))
    _require_one_place(world, attempt)
    planning.require_as_planned(world, plan, attempt)
    world.until(
        "it trains",
        lambda: list(world.tenant.steps(job_id)),
        lambda found: len(found) >= 5,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log,
    )
    back_s = killing.kill_alongside(world, attempt)
    steps = world.until(
        f"{STEPS_BEFORE_THE_FAULT} steps are trained",
        lambda: list(world.tenant.steps(job_id)),
        lambda found: len(found) >= STEPS_BEFORE_THE_FAULT,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log,
    )
    before, after = steps[0]["loss"] or 0.0, steps[-1]["loss"] or 0.0
    world.require("the loss falls", f"{before:.3f} → {after:.3f} in {len(steps)} steps", log, is_so=after < before)
    killing.require_undisturbed(world, job_id, back_s)
    return world.tenant.job(job_id)


def _require_one_place(world: World, attempt: Document) -> None:
    held = {gpu for host in attempt["hosts"] for gpu in host["gpus"]}
    cohorts = {gpu["cohort_key"] for gpu in world.operator.gpus() if gpu["uuid"] in held}
    nodes = {node["id"]: node for node in world.operator.nodes()}
    racks = {nodes[host["node_id"]]["rack"] for host in attempt["hosts"]}
    seen = ", ".join(f"{len(host['gpus'])} GPUs of {host['node_name']}" for host in attempt["hosts"])
    is_one = len(cohorts) == 1 and len(racks) == 1 and len(attempt["hosts"]) == 2
    world.require(f"one cohort, one rack ({', '.join(sorted(map(str, racks)))})", seen, "scheduler", is_so=is_one)


def fail(world: World, job: Document) -> Document:
    """Return the job after it SUCCEEDED."""
    world.teller.stage(
        3,
        f"One of its GPUs breaks: XID {XID}, an uncontained memory error",
        "evidence → QUARANTINED → evacuated → replaced from the cohort → resumed from before the fault",
    )
    job_id, log = job["id"], log_of(job["attempts"][0])
    margin_s = world.taint_margin_s
    world.until(
        f"two checkpoints are older than the {margin_s:.0f} s before now that a fault puts in doubt",
        lambda: world.saved(job_id),
        lambda found: sum(time.time() - seconds_of(one["committed_at"]) > margin_s + 1 for one in found) >= 2,
        seen=lambda found: f"{len(found)} checkpoints",
        log=log,
    )
    killing.await_judges(world, job["attempts"][0])
    victim = job["attempts"][0]["hosts"][1]
    bad = victim["gpus"][0]
    world.teller.write(f"[bold]muster sim inject gpu {bad} xid {XID}[/]  (on {victim['node_name']})")
    injected_s = world.inject(bad, XID)
    _quarantined(world, bad, injected_s)
    _recovered(world, job_id, bad, injected_s)
    killing.kill_in_turn(world, job_id)
    done = world.wait_for_end(job_id, "the job")
    steps = [row["step"] for row in world.tenant.steps(job_id)]
    world.require(
        "each step trained, none left out",
        f"steps {steps[0]} to {steps[-1]}",
        log,
        is_so=steps == list(range(1, STEPS + 1)),
    )
    return done


def _quarantined(world: World, bad: str, injected_s: float) -> None:
    changes = world.until(
        f"GPU {bad[-4:]} is QUARANTINED",
        lambda: [event for event in world.events.since(injected_s) if event["subject_id"] == bad],
        lambda found: any(event["kind"] == "gpu.quarantined" for event in found),
        seen=lambda found: ", ".join(event["kind"] for event in found) or "no event of it",
        log="worker-control",
    )
    at_s = next(seconds_of(event["at"]) for event in changes if event["kind"] == "gpu.quarantined")
    world.teller.measured("driver's event → QUARANTINED", at_s - injected_s, QUARANTINE_BAR_S, is_required=True)
    evidence = [one for one in world.operator.evidence(bad) if one["is_open"]]
    sources = sorted({source for one in evidence for source in one["sources"]})
    world.require(
        "one fault with two reports is one evidence with both sources",
        f"{len(evidence)} evidence of {' and '.join(sources)}",
        "worker-control",
        is_so=len(evidence) == 1 and len(sources) == 2,
    )


def _recovered(world: World, job_id: str, bad: str, injected_s: float) -> None:
    job = world.until(
        "the job is placed again without that GPU",
        lambda: world.tenant.job(job_id),
        lambda found: len(found["attempts"]) > 1,
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    before, after = job["attempts"][0], job["attempts"][1]
    kept = {gpu for host in before["hosts"] for gpu in host["gpus"]} - {bad}
    now = {gpu for host in after["hosts"] for gpu in host["gpus"]}
    world.require(
        "the 11 good GPUs are kept, the bad one is replaced from its cohort",
        f"{len(kept & now)} kept, {len(now - kept)} new",
        "scheduler",
        is_so=bad not in now and kept < now,
    )
    steps = world.until(
        "it trains again",
        lambda: [row for row in world.tenant.steps(job_id) if row["attempt_id"] == after["id"]],
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(after),
    )
    world.teller.measured("fault → training again", seconds_of(steps[0]["at"]) - injected_s)
    _require_clean_resume(world, job_id, before["id"], steps[0]["step"], injected_s)


def _require_clean_resume(world: World, job_id: str, before_id: str, resumed_at: int, injected_s: float) -> None:
    """Check that the job resumed from the newest verified generation before the fault's onset minus the margin.

    The later ones stand TAINTED.
    """
    of_before = [one for one in world.saved(job_id) if one["attempt_id"] == before_id]
    kept = [one for one in of_before if one["status"] != "EXPIRED"]
    clean = [one for one in kept if seconds_of(one["committed_at"]) < injected_s - world.taint_margin_s]
    tainted = [one for one in of_before if one["status"] == "TAINTED"]
    world.require(
        "checkpoints since shortly before the fault are TAINTED",
        ", ".join(f"step {one['step']}" for one in tainted) or "none",
        "worker-control",
        is_so=bool(tainted) and not {one["id"] for one in tainted} & {one["id"] for one in clean},
    )
    newest = max((one["step"] for one in clean), default=0)
    world.require(
        "resumed at the exact next step after the newest clean checkpoint",
        f"checkpoint of step {newest}, first step {resumed_at}",
        "worker-control",
        is_so=resumed_at == newest + 1,
    )
