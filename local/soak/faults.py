"""Kills of a soak, in an order that a seed gives, and the expected recovery after each."""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from local.tour import victims
from local.tour.world import BROKER, DATABASE, Document, World, log_of

PAUSE_S: Final = 5.0
"""Time for which a rank that is stopped by SIGSTOP stands still."""
OF_THE_JOB: Final[dict[str, Callable[[World, Document], str]]] = {
    "rank": victims.kill_rank,
    "torchrun": victims.kill_torchrun,
    "supervisor": victims.kill_supervisor,
    "host": victims.kill_host,
}
"""Each ends the attempt: the next one continues from the newest checkpoint."""
DAEMONS: Final = ("api", "scheduler", "worker-control", "worker-host", "agent", BROKER, DATABASE)
"""Each comes back by itself, and training takes no notice."""
STANDSTILL: Final = "standstill"
SOAK_FAULTS: Final = (*OF_THE_JOB, *DAEMONS, STANDSTILL)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery. ``seconds``: from the fault until a step was trained after it."""

    kind: str
    seconds: float


def in_turn(seed: int) -> Iterator[str]:
    """Yield every kind once a round, each round in an order of its own."""
    chance = random.Random(seed)  # noqa: S311  # a soak must repeat
    while True:
        yield from chance.sample(SOAK_FAULTS, len(SOAK_FAULTS))


def strike(world: World, job: Document, kind: str) -> Recovery:
    """Inject a fault and wait until the job trains again.

    Raises StepFailedError where it does not, or its attempt changed.
    """
    attempt = job["attempts"][-1]
    began = time.monotonic()
    if kind in OF_THE_JOB:
        world.teller.write(f"[bold]kill -9[/] {OF_THE_JOB[kind](world, attempt)}")
        _trains_again(world, job["id"], attempt)
    else:
        _disturb(world, attempt, kind)
        _goes_on(world, job["id"], attempt)
    return Recovery(kind, time.monotonic() - began)


def _disturb(world: World, attempt: Document, kind: str) -> None:
    if kind == STANDSTILL:
        _stand_still(world, attempt)
        return
    name = f"{kind} {attempt['hosts'][0]['node_name']}" if kind in {"worker-host", "agent"} else kind
    world.came_back(name, world.kill(name))


def _stand_still(world: World, attempt: Document) -> None:
    pid = victims.a_rank(world, attempt)
    world.teller.write(f"[bold]kill -STOP[/] a rank (pid {pid}), for {PAUSE_S:.0f} s")
    os.kill(pid, signal.SIGSTOP)
    world.stop.wait(PAUSE_S)
    os.kill(pid, signal.SIGCONT)


def _trains_again(world: World, job_id: str, before: Document) -> None:
    """Wait until the next attempt has trained a step."""
    world.until(
        "the next attempt trains",
        lambda: first_rank(world, job_id),
        lambda rank: rank["attempt_id"] != before["id"] and rank["step"] is not None,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(before),
    )


def _goes_on(world: World, job_id: str, attempt: Document) -> None:
    """Wait until the same attempt has trained a step since."""
    since = world.until("the control plane answers", lambda: first_rank(world, job_id), bool, seen=str, log="api")
    rank = world.until(
        "training continues",
        lambda: first_rank(world, job_id),
        lambda rank: (rank["attempt_id"], rank["step"]) != (since["attempt_id"], since["step"]),
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(attempt),
    )
    is_same = rank["attempt_id"] == attempt["id"]
    world.require("training takes no notice", f"step {rank['step']}", log_of(attempt), is_so=is_same)


def first_rank(world: World, job_id: str) -> Document:
    """Return the first rank's last report; ``step`` None: it has reported nothing."""
    return next(iter(world.tenant.ranks(job_id)), {"attempt_id": None, "step": None})
