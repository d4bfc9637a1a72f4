"""The watch tour: each job has one fault on purpose in one rank. The watch names it, and the job succeeds.

All jobs are submitted together, so the tour lasts as long as the slowest of them. The faults are kinds of
``MUSTER_TRAIN_FAULTS``: ``muster.train`` injects them in the job's own program, and nothing else is injected.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from local.tour import proving, repairing
from local.tour.world import Document, World, log_of, training

GOAL: Final = (
    "Muster watches running work: a rank that stands still, a rank that is slow, a false copy of a weight and a value"
    " that is no number are named by rank, and the job continues. The tour shows each on this machine."
)
STEPS: Final = 40
CHECKPOINT_EVERY: Final = 5
STEP_SLEEP_S: Final = 0.25
ROLLED_BACK: Final = "attempt.rolled_back"
FIRST_SCENE: Final = 3
LOST: Final = "node_lost"
"""Cause of an attempt whose host was silent for too long."""


@dataclass(frozen=True, slots=True)
class Named:
    """A statement of Muster about a fault: its sentence, and the ranks that it names."""

    sentence: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scene:
    """One job with one fault. ``fault``: as ``MUSTER_TRAIN_FAULTS`` takes it, in the rank ``culprit``.

    ``named``: returns what Muster states of the fault so far. ``survived``: how the job continues; it is checked by the
    attempts' causes in ``ends``, and by an ``event`` of its attempts, if one is named. ``fields``: further fields of
    the job.
    """

    name: str
    title: str
    injected: str
    fault: str
    culprit: int
    num_ranks: int
    source: str
    named: Callable[[World, str], Iterable[Named]]
    survived: str
    event: str = ""
    ends: tuple[str, ...] = ("succeeded",)
    nodes: int = 1
    steps: int = STEPS
    step_sleep_s: float = STEP_SLEEP_S
    fields: Mapping[str, Any] = field(default_factory=dict)


def verdicts_of(kind: str) -> Callable[[World, str], list[Named]]:
    """Return a reader of the verdicts of one kind."""

    def read(world: World, job_id: str) -> list[Named]:
        found = world.tenant.verdicts(job=job_id, kind=[kind])
        return [Named(one["sentence"], tuple(one["ranks"])) for one in found]

    return read


def reports_of(kind: str) -> Callable[[World, str], list[Named]]:
    """Return a reader of the events of one kind, of the job's attempts, that state ranks."""

    def read(world: World, job_id: str) -> list[Named]:
        payloads = _payloads(world, kind, world.tenant.job(job_id)["attempts"])
        return [Named(str(payload["reason"]), tuple(payload["ranks"])) for payload in payloads]

    return read


def _payloads(world: World, kind: str, attempts: Iterable[Document]) -> list[Document]:
    """Return the payloads of the attempts' events of one kind."""
    found = (event for one in attempts for event in world.tenant.newest_events(kind=kind, subject_id=one["id"]))
    return [event["payload"] for event in found]


def _reasons_of(world: World, kind: str, attempts: Iterable[Document]) -> list[str]:
    return [str(payload["reason"]) for payload in _payloads(world, kind, attempts)]


HANG: Final = Scene(
    name="watch-hang",
    title="A rank stands still, and the others wait for it",
    injected="rank 1 of 2 sleeps without an end before step 20",
    fault="hang@19/1",
    culprit=1,
    num_ranks=2,
    source="the verdict",
    named=verdicts_of("hang"),
    survived="the attempt is ended, and the next one continues from the newest checkpoint",
    ends=("hang", "succeeded"),
    nodes=2,
)
SLOW: Final = Scene(
    name="watch-slow",
    title="A rank computes longer, and the others wait for it at each step",
    injected="rank 1 of 3 takes 0.2 s longer for each step from step 25 on",
    fault="slow@24-79/1=0.2",
    culprit=1,
    num_ranks=3,
    source="the verdict",
    named=verdicts_of("straggler"),
    survived="the job's rule is to notify: one attempt",
    steps=80,
)
FLIP: Final = Scene(
    name="watch-flip",
    title="One bit of one weight flips in one of three copies",
    injected="bit 9 of a weight flips in rank 2 of 3 before step 13",
    fault="flip_weight@12/2=9",
    culprit=2,
    num_ranks=3,
    source="the event attempt.replica_fault",
    named=reports_of("attempt.replica_fault"),
    survived="all ranks go back to the newest checkpoint in place: one attempt",
    event=ROLLED_BACK,
)
NAN: Final = Scene(
    name="watch-nan",
    title="A value is no number",
    injected="a weight becomes NaN in rank 1 of 2 before step 18; the job's rule is to roll back",
    fault="nan@17/1",
    culprit=1,
    num_ranks=2,
    source="the event attempt.value_fault",
    named=reports_of("attempt.value_fault"),
    survived="all ranks go back to a checkpoint with finite values in place: one attempt",
    event=ROLLED_BACK,
    fields={"on_value_fault": "rollback"},
)
SCENES: Final = (FLIP, NAN, HANG, SLOW)


def watch(world: World) -> None:
    """Run the watch tour's steps, after the remains of an earlier tour are removed."""
    repairing.put_right(world)
    proving.prove(world)
    show(world, SCENES)
    _require_free(world)


def show(world: World, scenes: tuple[Scene, ...]) -> None:
    """Submit all scenes' jobs, and follow one after the other until each is named and has succeeded."""
    world.teller.stage(
        FIRST_SCENE - 1,
        f"{len(scenes)} jobs train at the same time",
        "each has one fault on purpose in one rank, by MUSTER_TRAIN_FAULTS; nothing else is injected",
    )
    jobs = {scene.name: _submitted(world, scene) for scene in scenes}
    for number, scene in enumerate(scenes, start=FIRST_SCENE):
        world.teller.stage(number, scene.title, scene.injected)
        _named(world, scene, jobs[scene.name])
        _survived(world, scene, jobs[scene.name])


def _submitted(world: World, scene: Scene) -> str:
    nodes = min(scene.nodes, len(world.hosts))
    ranks_per_node = scene.num_ranks // nodes
    spec = training(
        scene.name,
        steps=scene.steps,
        nodes=nodes,
        gpus_per_node=ranks_per_node,
        ranks_per_node=ranks_per_node,
        checkpoint_every=CHECKPOINT_EVERY,
        step_sleep_s=scene.step_sleep_s,
        env={"MUSTER_TRAIN_FAULTS": scene.fault},
        **scene.fields,
    )
    job_id = str(world.submit(world.tenant, spec)["id"])
    world.teller.write(f"[bold]MUSTER_TRAIN_FAULTS={scene.fault}[/]  {scene.name}: {scene.num_ranks} ranks")
    return job_id


def _named(world: World, scene: Scene, job_id: str) -> None:
    expected = f"{scene.source} names rank {scene.culprit}"
    found = world.until(
        expected,
        lambda: [each for each in scene.named(world, job_id) if each.ranks == (scene.culprit,)],
        bool,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="worker-control",
    )
    world.teller.passed(expected, found[-1].sentence)


def _survived(world: World, scene: Scene, job_id: str) -> None:
    job = world.wait_for_end(job_id, "the job")
    attempts = job["attempts"]
    # A machine that stands still for long loses its hosts: such an attempt is shown, and is none of the scene's.
    own = tuple(one["cause"] for one in attempts if one["cause"] != LOST)
    ends = ", ".join(f"attempt {one['number']} {one['cause']}" for one in attempts)
    events = [] if not scene.event else _reasons_of(world, scene.event, attempts)
    is_so = own == scene.ends and bool(events) == bool(scene.event)
    world.require(scene.survived, "; ".join([ends, *events]), log_of(attempts[-1]), is_so=is_so)
    steps = [row["step"] for row in world.tenant.steps(job_id)]
    world.require(
        "each step is trained, and none is left out",
        f"steps {steps[0]} to {steps[-1]}",
        log_of(attempts[-1]),
        is_so=steps == list(range(1, scene.steps + 1)),
    )


def _require_free(world: World) -> None:
    """Check that no report of a program took a GPU out of service."""
    gpus = list(world.operator.gpus())
    healthy = [gpu for gpu in gpus if gpu["standing"] == "HEALTHY"]
    world.require(
        "what a program reports takes no GPU out of service",
        f"{len(healthy)} of {len(gpus)} GPUs are HEALTHY",
        "worker-control",
        is_so=len(healthy) == len(gpus),
    )
