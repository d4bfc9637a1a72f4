"""Step 6: the broken GPU is repaired, burnt in again, serves its probation and is back."""

from typing import Final

from local.tour.world import LABEL, TERMINAL, Document, World

_REASON: Final = "the tour: the board was reset and its fault has ended"


def repair(world: World) -> None:
    world.teller.stage(
        6,
        "The broken GPU is repaired and earns its place again",
        "a person reports it, with a reason, and it is on record; then burn-in and probation, as for a new one",
    )
    taken_out = [gpu for gpu in world.operator.gpus() if gpu["standing"] == "QUARANTINED"]
    for gpu in taken_out:
        _require_a_way_back(world, gpu["uuid"])
    return_to_service(world)
    for gpu in taken_out:
        world.until(
            f"GPU {gpu['uuid'][-4:]} is HEALTHY",
            lambda: [one for one in world.operator.gpus() if one["standing"] != "HEALTHY"],
            lambda found: not found,
            seen=lambda found: ", ".join(one["standing"] for one in found),
            log="worker-control",
        )
        world.teller.passed(f"GPU {gpu['uuid'][-4:]} is HEALTHY again", "repaired, burnt in, probation served")
        _require_admission(world, gpu["uuid"])


def _require_a_way_back(world: World, uuid: str) -> None:
    """Check that the server shows what would return the GPU to service; the repair that follows does it."""
    tiers = world.operator.gpu_health(uuid)["admission"]
    ways = [[way["conditions"] for way in tier["recovery_paths"]] for tier in tiers]
    proved = [[way for way in each if "burn_in" in {condition["kind"] for condition in way}] for each in ways]
    told = max((each[0] for each in proved if each), key=len, default=[])
    world.teller.write(f"[bold]muster gpu show {uuid}[/]")
    world.require(
        f"the conditions for the return of GPU {uuid[-4:]} are shown",
        ", and ".join(condition["text"] for condition in told) or "nothing",
        "worker-control",
        is_so=bool(tiers) and all(proved),
    )


def _require_admission(world: World, uuid: str) -> None:
    admitted = {tier["tier"]: tier["is_admitted"] for tier in world.operator.gpu_health(uuid)["admission"]}
    world.require("and every tier takes it", ", ".join(admitted), "worker-control", is_so=all(admitted.values()))


def put_right(world: World) -> None:
    """Remove an earlier tour's jobs, faults and broken GPUs."""
    for job in world.operator.jobs():
        if job["state"] not in TERMINAL and job["spec"]["labels"].get(LABEL):
            world.operator.cancel_job(job["id"], reason="a new tour begins")
    return_to_service(world)


def return_to_service(world: World) -> None:
    """Repair each GPU that is QUARANTINED or in REPAIR: clear the fault beneath the probe, then report the repair."""
    world.clear_faults()
    for gpu in world.operator.gpus():
        if gpu["standing"] == "QUARANTINED":
            _report(world, gpu, "start")
        if gpu["standing"] in {"QUARANTINED", "REPAIR"}:
            _report(world, gpu, "finish")


def _report(world: World, gpu: Document, what: str) -> None:
    tell = world.operator.start_repair if what == "start" else world.operator.finish_repair
    tell(gpu["uuid"], _REASON)
    world.teller.write(f"[bold]muster gpu repair {gpu['uuid']} {what}[/]")
