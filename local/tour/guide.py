"""The run of the tour: the steps in order, after the remains of an earlier tour are removed, and the summary."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from local.tour import accounting, failing, proving, reclaiming, repairing, waiting
from local.tour.memory import MemoryWatch
from local.tour.world import World, has_passed

GOAL: Final = (
    "Muster governs a fleet of GPUs: it judges each one by evidence, places training jobs as whole gangs, reclaims"
    " capacity by contract, and brings jobs through failures. The tour shows that end to end on this machine."
)
FIGURES: Final = "tour.json"
"""Figures of the last tour, in the state folder."""
TOUR_BAR_S: Final = 240.0
MEMORY_BAR_GIB: Final = 4.0
LEAST_STEP_SLEEP_S: Final = 0.05
SLEEP_FOR_BUSYNESS_S: Final = 0.5
USUALLY_PROVED_AFTER_S: Final = 30.0
"""Usual time of the proof on two cores without other load."""


def lead(world: World, policy_name: str, steps: Callable[[World], None] | None = None, *, goal: str = GOAL) -> bool:
    """Run the steps and return whether each of them and every bar held. ``steps``: instead of the whole tour's."""
    teller = world.teller
    teller.console.print(f"[bold]The tour[/]  {goal}", soft_wrap=True)
    teller.console.print(
        "The GPUs are [bold]simulated[/], beneath the driver; agents, ranks, checkpoints and kills are real."
        f" Policy: {policy_name}.",
        soft_wrap=True,
    )
    memory = MemoryWatch(world.state_dir)
    memory.start()
    try:
        held = has_passed(world, lambda: (steps or _steps)(world), "the tour")
    finally:
        held_gib = memory.close()
    if not held:
        return False
    teller.measured("the whole tour", time.monotonic() - teller.started_s, TOUR_BAR_S)
    teller.measured("memory of everything, at most", held_gib, MEMORY_BAR_GIB, unit="GiB")
    return _summed_up(world)


def _steps(world: World) -> None:
    repairing.put_right(world)
    proving.prove(world)
    step_sleep_s = _step_sleep_s(time.monotonic() - world.teller.started_s)
    job = failing.fail(world, failing.train(world, step_sleep_s))
    spot_id = reclaiming.reclaim(world, job, step_sleep_s)
    waiting.wait(world)
    reclaiming.require_returned(world, spot_id)
    repairing.repair(world)
    accounting.account(world)


def _step_sleep_s(proved_after_s: float) -> float:
    """Return the pause of a rank after a step: the slower the machine proved its GPUs, the longer.

    So training lasts while a busy machine kills and observes.
    """
    return LEAST_STEP_SLEEP_S + SLEEP_FOR_BUSYNESS_S * max(0.0, proved_after_s / USUALLY_PROVED_AFTER_S - 1)


def _summed_up(world: World) -> bool:
    held = world.teller.summary()
    figures = [{**asdict(one), "holds": one.holds} for one in world.teller.measures]
    (world.state_dir / FIGURES).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    words = "[bold green]every step held[/]" if held else "[bold red]a guaranteed time was not held[/]"
    world.teller.console.print(f"\n{words}: {len(world.teller.checks)} things were proved")
    return held
