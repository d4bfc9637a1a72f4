"""Kills of processes around and under the tour's job.

First daemons and the broker, of which training takes no notice; then a rank, a torchrun and a whole host, and the job
continues each time.
"""

import time
from collections.abc import Callable
from typing import Final

from local.tour import victims
from local.tour.world import BROKER, Document, World, log_of, seconds_of

RESTARTS: Final = 3
KILLS: Final = (("rank", victims.kill_rank), ("torchrun", victims.kill_torchrun), ("host", victims.kill_host))
CONTROL_WORKER: Final = "worker-control"
TRAINED_STEPS: Final = 2
"""Steps of an attempt before the next kill."""
_VERIFIED: Final = frozenset({"VERIFIED", "GOOD"})
_REFUSED_STATES: Final = frozenset({"TAINTED", "REJECTED"})


def kill_alongside(world: World, attempt: Document) -> float:
    """Kill an agent, the control worker, the broker and a host worker, each once the one before runs again.

    The agent that reports faults and the worker that judges them die first: a process is back before it works, and a
    fault comes soon. Returns when the last was back, in seconds since 1970, for ``require_undisturbed``. A broker that
    is not our own is spared.
    """
    first, second = (host["node_name"] for host in attempt["hosts"])
    for name in (f"agent {second}", CONTROL_WORKER, BROKER, f"worker-host {first}"):
        if name != BROKER or BROKER in world.servers:
            world.came_back(name, world.kill(name))
    return time.time()


def await_judges(world: World, attempt: Document) -> None:
    """Wait until the agent and the control worker that ``kill_alongside`` killed run again.

    A process takes seconds to start; the time from a fault to its judgement is guaranteed for processes that run.
    """
    placed_s = seconds_of(attempt["placed_at"])
    for name in (f"agent {attempt['hosts'][1]['node_name']}", CONTROL_WORKER):
        world.runs_again(name, placed_s)


def require_undisturbed(world: World, job_id: str, since_s: float) -> None:
    """Check one attempt, each step once, and checkpoints stored and verified again after ``kill_alongside``."""
    log = log_of(world.tenant.job(job_id)["attempts"][-1])
    verified = world.until(
        "a checkpoint that was made since is verified",
        lambda: [
            one
            for one in world.tenant.checkpoints(job_id)
            if one["status"] in _VERIFIED and seconds_of(one["committed_at"]) > since_s
        ],
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log,
    )[0]
    steps = [row["step"] for row in world.tenant.steps(job_id)]
    attempts = world.tenant.job(job_id)["attempts"]
    world.require(
        "a restarted host worker adopts the running training, a restarted agent continues",
        f"attempt {attempts[-1]['number']}, no rank was started again",
        log,
        is_so=len(attempts) == 1,
    )
    killed = "broker and the control worker were" if BROKER in world.servers else "control worker was"
    world.require(
        f"the {killed} killed and came back; nothing was lost",
        f"steps 1 to {steps[-1]}, each once; the checkpoint of step {verified['step']} is verified since",
        CONTROL_WORKER,
        is_so=steps == list(range(1, len(steps) + 1)),
    )


def kill_in_turn(world: World, job_id: str) -> None:
    """Kill each in turn; end with the job training again after the last."""
    world.teller.write("further kills: a rank, the torchrun above it, a host with all of its processes")
    before: Document = {}
    for name, kill in KILLS:
        before = _survives(world, job_id, name, kill)
    _require_host_back(world, job_id, before)


def _require_host_back(world: World, job_id: str, before: Document) -> None:
    """Check that the host is back, and its part proved clean.

    Its daemons are started as by a boot; its programs are proved to have ended before another job has its GPUs.
    """
    host = before["hosts"][victims.HOST_PART]
    name, index = host["node_name"], before["number"] - 1

    def seen() -> tuple[Document, Document]:
        part = world.tenant.job(job_id)["attempts"][index]["hosts"][victims.HOST_PART]
        return world.operator.node(host["node_id"]), part

    node, part = world.until(
        f"{name} is back",
        seen,
        lambda found: found[0]["contact"] == "LIVE" and found[1]["clean_at"] is not None,
        seen=lambda found: f"{found[0]['contact']}, its part of the attempt {found[1]['state']}",
        log=f"worker-host-{name}",
    )
    about = {host["node_id"], *host["gpus"]}
    unclean = [one["reason"] for one in world.operator.cordons() if about & {one["node_id"], one["gpu_uuid"]}]
    world.require(
        f"the killed host is started again, and its {len(part['gpus'])} GPUs are back by proof",
        f"{name} is {node['contact']}, its part of the attempt {part['state']}; "
        + (", ".join(unclean) or "no cordon stands"),
        f"worker-host-{name}",
        is_so=part["state"] == "CLEAN" and not unclean,
    )


def _survives(world: World, job_id: str, name: str, kill: Callable[[World, Document], str]) -> Document:
    """Return the attempt that lost it."""
    before = _training_attempt(world, job_id)
    least = max((one["step"] for one in world.saved(job_id) if one["status"] in _VERIFIED), default=0)
    what = kill(world, before)
    world.teller.write(f"[bold]kill -9[/] {what}")
    ended = world.until(
        f"the attempt that lost its {name} has ended",
        lambda: world.tenant.job(job_id)["attempts"],
        lambda found: len(found) > before["number"] and found[before["number"] - 1]["ended_at"] is not None,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(before),
    )[before["number"] - 1]
    after = _training_attempt(world, job_id)
    first = min(row["step"] for row in world.tenant.steps(job_id) if row["attempt_id"] == after["id"])
    kept = {0, *(one["step"] for one in world.saved(job_id) if one["status"] not in _REFUSED_STATES)}
    world.require(
        f"a killed {name} costs no more than the steps since the last checkpoint",
        f"{ended['cause']}: {ended['proof']}; continues at step {first}",
        log_of(after),
        is_so=first - 1 in kept and first - 1 >= least,
    )
    return before


def _training_attempt(world: World, job_id: str) -> Document:
    """Return the newest attempt, once it has trained some steps."""

    def trained() -> tuple[Document, int]:
        newest = world.tenant.job(job_id)["attempts"][-1]
        return newest, sum(row["attempt_id"] == newest["id"] for row in world.tenant.steps(job_id))

    found, _ = world.until(
        "it trains",
        trained,
        lambda found: found[1] >= TRAINED_STEPS,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )
    return found
