"""The run of a soak: train, inject a fault once a minute, compare with an undisturbed run, and sum up."""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from local.soak.books import Leftovers, effective_ratio, text_of
from local.soak.faults import OF_THE_JOB, Recovery, first_rank, in_turn, strike
from local.tour import proving
from local.tour.memory import MemoryWatch
from local.tour.output import InterruptedTourError, StepFailedError
from local.tour.world import Document, World, has_passed, seconds_of, training

FIGURES: Final = "soak.json"
EVERY_S: Final = 60.0
STEP_SLEEP_S: Final = 0.3
"""A rank waits as it would for its GPU, so that two cores can bear the ranks, and recovery is what is measured."""
USUAL_STEP_S: Final = 0.33
"""The sleep and the computation of two ranks on an idle machine: a longer step only makes the soak longer."""
ETTR_BAR: Final = 0.8
LEAST_LEFT_STEPS: Final = 60
"""A fault close to the end would meet a job that has just ended."""
GONE_WITHIN_S: Final = 60.0
SOAK_POLL_S: Final = 1.0
Found = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Soak:
    """Parameters of a soak. ``gpus_per_node``: of each of the gang's ``nodes``.

    No fault comes with fewer than ``least_left_steps`` left. ``is_struck``: by a fault a minute; else the gang trains
    undisturbed.
    """

    minutes: float
    seed: int
    is_struck: bool = True
    least_left_steps: int = LEAST_LEFT_STEPS
    nodes: int = 2
    gpus_per_node: int = 6

    @property
    def steps(self) -> int:
        """Return as many steps as an undisturbed gang needs for all of the time: faults make it no shorter."""
        return max(2 * self.least_left_steps, int(60 * self.minutes / USUAL_STEP_S))


def lead(world: World, plan: Soak) -> bool:
    """Run the soak and return whether all of it held."""
    teller = world.teller
    teller.console.print(
        f"[bold]The soak[/]  {plan.steps} steps, a fault a minute, seed {plan.seed}. The GPUs are [bold]simulated[/],"
        " beneath the driver; ranks, checkpoints and kills are real.",
        soft_wrap=True,
    )
    memory = MemoryWatch(world.state_dir)
    memory.start()
    done: list[tuple[Document, Found]] = []
    try:
        held = has_passed(world, lambda: done.append(_steps(world, plan)), "the soak")
    finally:
        held_gib = memory.close()
    if not held:
        return False
    teller.measured("memory of everything, at most", held_gib, unit="GiB")
    return _summed_up(world, *done[0])


def _steps(world: World, plan: Soak) -> tuple[Document, Found]:
    """Run the steps; return the job with its faults, and the remains of all attempts."""
    proving.prove(world)
    leftovers = Leftovers(world)
    job = _train(world, plan)
    _compare(world, job, plan)
    return job, what_is_left(world, leftovers)


def _train(world: World, plan: Soak) -> Document:
    """Return the job once it has SUCCEEDED."""
    world.teller.stage(2, "A gang trains, and a process dies each minute", "each kind once a round, in a seeded order")
    job_id = _submit(world, "soak", plan, STEP_SLEEP_S)
    recoveries: list[Recovery] = []
    kinds = in_turn(plan.seed)
    for _ in _due(world, job_id, plan):
        recovery = strike(world, world.tenant.job(job_id), next(kinds))
        recoveries.append(recovery)
        world.teller.passed(f"after a {recovery.kind}", f"it trains again after {recovery.seconds:.1f} s")
    _report_recoveries(world, recoveries)
    return world.wait_for_end(job_id, "the job")


def _due(world: World, job_id: str, plan: Soak) -> Iterator[int]:
    """Yield once a minute from the first step on, as long as enough steps are left."""
    _wait_for_step(world, job_id)
    if not plan.is_struck:
        return
    began = time.monotonic()
    number = 0
    while True:
        number += 1
        while time.monotonic() < began + number * EVERY_S:
            if world.stop.wait(SOAK_POLL_S):
                raise InterruptedTourError
        if _wait_for_step(world, job_id)["step"] + plan.least_left_steps > plan.steps:
            return
        yield number


def _wait_for_step(world: World, job_id: str) -> Document:
    return world.until(
        "it trains",
        lambda: first_rank(world, job_id),
        lambda rank: rank["step"] is not None,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )


def _submit(world: World, name: str, plan: Soak, step_sleep_s: float) -> str:
    spec = training(
        name,
        steps=plan.steps,
        nodes=plan.nodes,
        gpus_per_node=plan.gpus_per_node,
        ranks_per_node=1,
        checkpoint_every="auto",
        step_sleep_s=step_sleep_s,
        restart={"max_restarts": 3},
    )
    return str(world.submit(world.tenant, spec)["id"])


def _compare(world: World, job: Document, plan: Soak) -> None:
    world.teller.stage(3, "The same program undisturbed", "every loss of the two runs is compared, bit for bit")
    undisturbed = _submit(world, "soak-undisturbed", plan, 0.0)
    world.wait_for_end(undisturbed, "the undisturbed run", patience_s=60 + plan.steps)
    ours, theirs = (_curve(world, each) for each in (job["id"], undisturbed))
    world.require(
        "the losses equal the undisturbed run's, bit for bit",
        f"{sum(ours.get(step) == loss for step, loss in theirs.items())} of {len(theirs)} steps",
        "worker-control",
        is_so=ours == theirs and len(ours) == plan.steps,
    )


def _curve(world: World, job_id: str) -> dict[int, float | None]:
    return {row["step"]: row["loss"] for row in world.tenant.steps(job_id)}


def what_is_left(world: World, leftovers: Leftovers) -> Found:
    """Return the remains of every kind, after the time that each may take to disappear."""
    world.teller.stage(4, "Nothing is left behind", "processes, ports, folders, shared memory, descriptors, groups")
    deadline_s = time.monotonic() + GONE_WITHIN_S
    while any((found := leftovers.found()).values()) and time.monotonic() < deadline_s:
        if world.stop.wait(SOAK_POLL_S):
            raise InterruptedTourError
    if any(found.values()):
        expected = f"nothing of any attempt is left within {GONE_WITHIN_S:.0f} s"
        world.teller.failed(StepFailedError(expected, text_of(found), world.log("worker-control")))
    else:
        world.teller.passed("nothing of any attempt is left", text_of(found))
    return found


def _report_recoveries(world: World, recoveries: list[Recovery]) -> None:
    ended = [one.seconds for one in recoveries if one.kind in OF_THE_JOB]
    world.teller.measured("faults", len(recoveries), unit="faults")
    world.teller.measured("faults that ended an attempt", len(ended), unit="faults")
    if ended:
        world.teller.measured("such a fault → a step after it, median", statistics.median(ended))
        world.teller.measured("such a fault → a step after it, longest", max(ended))


def _summed_up(world: World, job: Document, left: Found) -> bool:
    steps = list(world.tenant.steps(job["id"]))
    submitted_s, ended_s = seconds_of(job["created_at"]), seconds_of(job["finished_at"])
    ratio = effective_ratio(steps, submitted_s=submitted_s, ended_s=ended_s)
    world.teller.measured("lasted", ended_s - submitted_s)
    world.teller.summary()
    held = ratio >= ETTR_BAR and not any(left.values())
    colour = "green" if ratio >= ETTR_BAR else "red"
    world.teller.console.print(f"\n[bold {colour}]ETTR {ratio:.3f}[/], at least {ETTR_BAR} is required")
    figures: dict[str, Any] = {"ettr": ratio, "ettr_bar": ETTR_BAR, "leftovers": left}
    figures["measures"] = [asdict(one) for one in world.teller.measures]
    (world.state_dir / FIGURES).write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return held
