"""Step 5: a gang waits with a hold. A job that ends in time runs on it meanwhile; another one learns why it waits."""

from pathlib import Path
from typing import Any, Final

from local.tour import planning
from local.tour.world import LABEL, TERMINAL, Document, World, seconds_of

GPUS: Final = 7
"""GPUs of each host, since one of the hosts has lost a GPU."""
EVALUATION_S: Final = 240.0
GANG_S: Final = 30.0
"""Wall time of the gang: of two pending jobs the shorter one is first."""
_UNTIL_THERE: Final = 'until test -e "$1"; do sleep 0.1; done'
_DONE: Final = ["/bin/sleep", "1"]


def wait(world: World) -> None:
    """Run the step on two hosts of one rack that are idle, whatever the others do."""
    world.teller.stage(
        5,
        "A gang waits: GPUs are held for it, and a job that ends in time runs on them meanwhile",
        "a pending job shows what binds, filter by filter, the jobs ahead, its earliest start, and what would help",
    )
    spec, door = until_opened(world, "evaluation", wall_time_s=EVALUATION_S)
    evaluation = placed(world, spec)
    gang = _on_hold(world)
    long = submitted(world, _spec("long-run", _DONE))
    advised_s = _explained(world, long)
    _passed(world, gang, long, advised_s)
    door.touch()
    _started(world, gang, evaluation)
    world.wait_for_end(long["id"], "the job that had to wait for the gang")


def until_opened(world: World, name: str, **more: Any) -> tuple[Document, Path]:
    """Return a job that saves nothing and ends well as soon as a file is made, and that file."""
    door = world.state_dir / f"tour-{name}.open"
    door.unlink(missing_ok=True)
    return _spec(name, ["/bin/sh", "-c", _UNTIL_THERE, "sh", str(door)], **more), door


def _spec(name: str, argv: list[str], *, nodes: int = 1, **more: Any) -> Document:
    return {
        "name": name,
        "program": {"launcher": "command", "argv": argv},
        "shape": {"nodes": nodes, "gpus_per_node": GPUS},
        "tier": "spot",
        "labels": {LABEL: "yes"},
        **more,
    }


def submitted(world: World, spec: Document) -> Document:
    return world.tenant.job(world.submit(world.tenant, spec)["id"])


def placed(world: World, spec: Document) -> Document:
    """Return the job, once it runs."""
    job_id = world.submit(world.tenant, spec)["id"]
    return world.until(
        f"{spec['name']} runs",
        lambda: world.tenant.job(job_id),
        lambda found: bool(found["attempts"]) and found["attempts"][-1]["running_at"] is not None,
        seen=world.progress,
        log="scheduler",
    )


def _on_hold(world: World) -> Document:
    """Return the gang's explanation, with its hold; ``id``: the job's."""
    spec = _spec("gang", _DONE, nodes=2, topology={"required": "rack"}, wall_time_s=GANG_S)
    plan = planning.planned(world, spec)
    gang = submitted(world, spec)
    told = world.until(
        "GPUs are held for the gang",
        lambda: world.operator.explain_job(gang["id"]),
        lambda found: found["outcome"] == "hold",
        seen=lambda found: f"{found['outcome']}: {found['why']}",
        log="scheduler",
    )
    names = planning.names_of(told["hosts"])
    world.require(
        "its GPUs are held, on the hosts and until the time of its plan",
        f"{2 * GPUS} GPUs of {names}, free in {_in_s(gang, told['starts_at'])} at the latest",
        "scheduler",
        is_so=plan["outcome"] == "hold" and names == planning.names_of(plan["hosts"]) and bool(told["starts_at"]),
    )
    return {**told, "id": gang["id"]}


def _explained(world: World, long: Document) -> float:
    """Return the wall time with which the job would start at once."""
    told = world.until(
        "the long job shows what would let it start",
        lambda: world.tenant.explain_job(long["id"]),
        lambda found: any(change["field"] == "wall_time_s" for change in found["changes"]),
        seen=lambda found: f"{found['outcome']}: {found['why']}",
        log="scheduler",
    )
    world.teller.write(f"[bold]muster job explain {long['id']}[/]")
    counted = [reason for reason in told["reasons"] if reason["num_gpus"]]
    num_gpus = sum(host.num_gpus for host in world.hosts)
    world.require(
        f"why it waits, each of the {num_gpus} GPUs counted once",
        "; ".join(f"{each['token']} {each['num_gpus']}" for each in counted) + f"; what binds: {told['binding']}",
        "scheduler",
        is_so=told["binding"] in {each["token"] for each in counted}
        and sum(each["num_gpus"] or 0 for each in counted) <= num_gpus,
    )
    latest = "the latest time is unknown" if told["latest_at"] is None else f"and {_in_s(long, told['latest_at'])}"
    world.require(
        "the jobs ahead of it, and when it may start",
        f"{told['num_ahead']} job for {told['gpus_ahead']} GPUs; between {_in_s(long, told['earliest_at'])} {latest}",
        "scheduler",
        is_so=(told["num_ahead"], told["gpus_ahead"]) == (1, 2 * GPUS) and told["earliest_at"] is not None,
    )
    return next(float(change["value"]) for change in told["changes"] if change["field"] == "wall_time_s")


def _passed(world: World, gang: Document, long: Document, advised_s: float) -> None:
    """Submit the same job with the advised wall time."""
    world.teller.write(f"the same again, with the wall time that would suffice: {advised_s:.0f} s")
    short = submitted(world, _spec("short-run", _DONE, wall_time_s=advised_s))
    done = world.until(
        "the short job is placed",
        lambda: world.tenant.job(short["id"]),
        lambda found: bool(found["attempts"]),
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    hosts = done["attempts"][0]["hosts"]
    others = [world.tenant.job(job_id)["state"] for job_id in (gang["id"], long["id"])]
    is_inside = {host["node_name"] for host in hosts} <= {host["node_name"] for host in gang["hosts"]}
    world.require(
        "the shown change lets it start at once, on the GPUs held for the gang; the others still wait",
        f"short-run on {planning.names_of(hosts)}; gang and long-run {' and '.join(others)}",
        "scheduler",
        is_so=is_inside and others == ["QUEUED", "QUEUED"],
    )
    world.wait_for_end(short["id"], "the short job")


def _started(world: World, gang: Document, evaluation: Document) -> None:
    ended = world.wait_for_end(evaluation["id"], "the evaluation, before its wall time,")
    job = world.until(
        "the gang is placed",
        lambda: world.tenant.job(gang["id"]),
        lambda found: bool(found["attempts"]) or found["state"] in TERMINAL,
        seen=lambda found: f"{found['state']}: {found['state_reason']}",
        log="scheduler",
    )
    attempt = job["attempts"][0]
    waited_s = seconds_of(attempt["placed_at"]) - seconds_of(ended["finished_at"])
    world.require(
        "the gang starts on the held GPUs as soon as they are free",
        f"on {planning.names_of(attempt['hosts'])}, {waited_s:.1f} s after the evaluation's end",
        "scheduler",
        is_so=planning.names_of(attempt["hosts"]) == planning.names_of(gang["hosts"])
        and seconds_of(attempt["placed_at"]) <= seconds_of(gang["starts_at"]),
    )


def _in_s(job: Document, moment: str | None) -> str:
    return f"{seconds_of(moment) - seconds_of(job['created_at']):.0f} s"
