"""Step 3, its end: a rank, a torchrun and a whole host die in turn, and the job goes on each time."""

from collections.abc import Callable
from typing import Final

from muster.embedded.tour import victims
from muster.embedded.tour.world import Document, World, log_of

RESTARTS: Final = 3
KILLS: Final = (("rank", victims.kill_rank), ("torchrun", victims.kill_torchrun), ("host", victims.kill_host))
TRAINED_STEPS: Final = 2
"""Of an attempt, before the next kill."""
_VERIFIED: Final = frozenset({"VERIFIED", "GOOD"})
_REFUSED: Final = frozenset({"TAINTED", "REJECTED"})


def kill_in_turn(world: World, job_id: str) -> None:
    """Ends with the job training again after the last."""
    world.teller.say("what else may die: a rank, the torchrun above it, a host with all that runs there")
    for name, kill in KILLS:
        _survives(world, job_id, name, kill)


def _survives(world: World, job_id: str, name: str, kill: Callable[[World, Document], str]) -> None:
    before = _training_attempt(world, job_id)
    least = max((one["step"] for one in world.tenant.checkpoints(job_id) if one["status"] in _VERIFIED), default=0)
    what = kill(world, before)
    world.teller.say(f"[bold]kill -9[/] {what}")
    ended = world.until(
        f"the attempt that lost its {name} has ended",
        lambda: world.tenant.job(job_id)["attempts"],
        lambda found: len(found) > before["number"] and found[before["number"] - 1]["ended_at"] is not None,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(before),
    )[before["number"] - 1]
    after = _training_attempt(world, job_id)
    first = min(row["step"] for row in world.tenant.steps(job_id) if row["attempt_id"] == after["id"])
    kept = {0, *(one["step"] for one in world.tenant.checkpoints(job_id) if one["status"] not in _REFUSED)}
    world.require(
        f"a killed {name} costs no more than the steps since the last checkpoint",
        f"{ended['cause']}: {ended['proof']}; goes on at step {first}",
        log_of(after),
        is_so=first - 1 in kept and first - 1 >= least,
    )


def _training_attempt(world: World, job_id: str) -> Document:
    """The newest attempt, once it has trained some steps."""

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
