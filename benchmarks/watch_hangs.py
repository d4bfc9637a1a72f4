"""Hangs of six kinds, replayed: from the streams of the ranks' progress to the verdict, by trackers and judge.

Each host has its own tracker, and the keeper joins their reports by the periods of production (``watch_hosts``).
Each case is a gang on virtual time that trains, evaluates, saves and loads, until one rank stands still. The stacks and
collectives were recorded from real gloo ranks (``tests/watch/bundles/recorded.json``). They get other numbers of ranks,
steps, sequences and hosts. Some ranks lack a stack or a dump, a host may be missing, and the hosts' clocks are up to an
hour apart. ``watch_hangs_live`` has the live ones. The clean windows are from ``tests/watch/progress``.
"""

import json
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_hosts import Hosts
from tests.watch.bundles.labelled import Bundle, bundles_of
from tests.watch.progress.worlds import Rank, gang
from watch.forensics.documents import from_document, to_document
from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.reports import HostReport, ProcessState, RankReport, StackSource

RECORDED: Final = Path(__file__).resolve().parents[1] / "tests" / "watch" / "bundles" / "recorded.json"
VERDICT_BAR_S: Final = 60.0
RIGHT_BAR: Final = 95.0
CLEAN_S: Final = 1200.0
_HOUR_MS: Final = 3_600_000
_LOST: Final = 0.1
"""Share of ranks without a stack, and of ranks without a dump."""
_NOISE: Final = (
    "step 1200 loss 2.4519 tokens/s 18,210",
    "UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.",
    "NCCL INFO Channel 00/02 : 0 1 2 3",
    "[rank0]: note: gradient clipping is on",
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark: replayed hangs, and clean windows of 20 minutes."""

    hangs: int
    windows: int


SIZES: Final = Sizes(full=Size(hangs=494, windows=1000), smallest=Size(hangs=12, windows=3))


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of hang: recorded bundles of it, and the state of the rank that causes it."""

    bundles: tuple[str, ...]
    cause: str
    phase: Phase = Phase.STEP
    process: ProcessState = ProcessState.SLEEPING
    cpu_share: float = 0.0
    least_ranks: int = 2


KINDS: Final = {
    "stopped": Kind(("is_stopped",), "stopped_process", process=ProcessState.STOPPED),
    "skipped": Kind(("skips_an_all_reduce", "two_ranks_one_skips"), "skipped_collective"),
    "wrong shape or operation": Kind(("gathers_where_others_reduce",), "mismatched_collective", least_ranks=3),
    "endless Python": Kind(("sleeps", "computes_without_end"), "endless_python", cpu_share=0.98),
    "dead loader": Kind(("loads_in_the_main_process", "loads_by_a_worker"), "data_loader", phase=Phase.DATA),
    "stuck storage": Kind(("reads_weights_without_end",), "storage"),
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A hang's verdict. ``seconds``: since the hang; None: it was not found in ten minutes."""

    kind: str
    seconds: float | None
    is_culprit_right: bool
    is_cause_right: bool


def measure(size: Size) -> Groups:
    recorded = {each.name.removeprefix("recorded_"): each for each in bundles_of(RECORDED)}
    judged = [_judged(number, recorded) for number in range(size.hangs)]
    yield _figures(judged)
    alarms = sum(_is_alarm(seed) for seed in range(size.windows))
    peers = {"windows": float(size.windows), "live": 0.0}
    yield [Figure("hangs: alarms in clean windows", float(alarms), "", 0.0, peers=peers, basis=Basis.COUNT)]


def _figures(judged: Sequence[Judged]) -> list[Figure]:
    times = sorted(600.0 if each.seconds is None else each.seconds for each in judged)
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    right = 100 * statistics.mean(each.is_culprit_right for each in judged)
    causes = 100 * statistics.mean(each.is_cause_right for each in judged)
    cases = {"replayed": float(len(judged)), "live": 0.0}
    by_kind = {
        kind: 100 * statistics.mean(each.is_culprit_right for each in judged if each.kind == kind) for kind in KINDS
    }
    return [
        Figure(
            "hangs: verdict, 99 of 100",
            p99,
            "s",
            VERDICT_BAR_S,
            peers={**cases, "median": statistics.median(times), "longest": times[-1]},
            basis=Basis.COUNT,
        ),
        Figure("hangs: culprit right", right, "%", RIGHT_BAR, "higher", {**cases, **by_kind}, basis=Basis.COUNT),
        Figure("hangs: cause right", causes, "%", RIGHT_BAR, "higher", cases, basis=Basis.COUNT),
    ]


def _judged(number: int, recorded: dict[str, Bundle]) -> Judged:
    """Play one hang. A gang of ranks trains by one script, so all stand at the same step."""
    rng = random.Random(number)  # noqa: S311  # a case that repeats
    name = list(KINDS)[number % len(KINDS)]
    kind = KINDS[name]
    num_ranks, step_s = rng.choice([each for each in (2, 3, 4, 8, 16) if each >= kind.least_ranks]), _step_s(rng)
    culprit = rng.randrange(num_ranks)
    ranks = [Rank(rank) for rank in range(num_ranks)]
    for rank in ranks:
        rank.script = _trains(rank, random.Random(number), step_s)  # noqa: S311
    num_hosts = rng.choice([each for each in (1, 2, 4) if num_ranks % each == 0])
    world = Hosts.of(ranks, num_hosts, rng)
    if world.watch(60 + 25 * step_s + rng.uniform(0, 120)) is not None:
        return Judged(name, None, is_culprit_right=False, is_cause_right=False)  # an alarm before the hang
    began_s = world.now_s
    _stand_still(world, kind, culprit, rng)
    if num_hosts == 4 and rng.random() < 0.3:
        width = num_ranks // num_hosts
        world.lost = frozenset({rng.choice([each for each in range(num_hosts) if each != culprit // width])})
    found_s = world.watch(600.0)
    reports = _reports(kind, recorded[rng.choice(kind.bundles)], world, culprit, rng)
    verdict = judge_hang(reports)
    return Judged(
        name,
        None if found_s is None else found_s - began_s,
        is_culprit_right=verdict.ranks[:1] == (culprit,),
        is_cause_right=verdict.cause == kind.cause,
    )


def _step_s(rng: random.Random) -> float:
    return rng.choice([0.2, 0.5, 1.0, 2.0, 5.0, 10.0]) * rng.uniform(0.8, 1.0)


def _trains(rank: Rank, rng: random.Random, step_s: float) -> Iterator[float]:
    """Yield a training with short saves, evaluations and waits for data."""
    rank.phase, rank.ticks = Phase.RESTORE, 1
    yield rng.uniform(0, 10)
    rank.phase = Phase.FIRST_STEP
    yield step_s + rng.uniform(0, 5)
    while True:
        rank.step, rank.phase = rank.step + 1, Phase.STEP
        for _ in range(3):
            rank.ticks += 1
            yield step_s / 3 * rng.uniform(0.7, 1.3)
        rank.phase, rank.ticks = Phase.DATA, rank.ticks + 1
        yield rng.uniform(0, 0.5)
        if rank.step % 5 == 0:
            rank.phase, rank.io = Phase.SAVE, rng.choice([0.0, 1e8])
            yield rng.uniform(0.5, 5)
            rank.io = 0.0
        if rank.step % 20 == 0:
            rank.phase = Phase.EVALUATION
            for _ in range(10):
                rank.ticks += 1
                yield rng.uniform(0.1, 1.0)


def _stand_still(world: Hosts, kind: Kind, culprit: int, rng: random.Random) -> None:
    """Stop the culprit; the others enter a collective and wait there, some of them in a busy loop."""
    spins = rng.random() < 0.5
    for rank in world.ranks:
        rank.script, rank.io, rank.moves = None, 0.0, False
        is_culprit = rank.number == culprit
        rank.phase = kind.phase if is_culprit else Phase.STEP
        rank.ticks += 1 if is_culprit else 2
        rank.process = kind.process if is_culprit else rng.choice([ProcessState.SLEEPING, ProcessState.RUNNING])
        rank.cpu_share = kind.cpu_share if is_culprit else (0.99 if spins else 0.0)


def _reports(kind: Kind, bundle: Bundle, world: Hosts, culprit: int, rng: random.Random) -> list[HostReport]:
    """Return what the hosts report, as documents that were written and read."""
    recorded = [rank for report in bundle.reports for rank in report.ranks]
    cause = next(rank for rank in recorded if rank.rank == bundle.rank)
    others = [rank for rank in recorded if rank.rank != bundle.rank]
    shift, is_resized = rng.randrange(100_000), kind.cause == "mismatched_collective" and rng.random() < 0.5
    ranks = []
    for now in (rank.report(world.now_s) for rank in world.ranks):
        is_culprit = now.rank == culprit
        known = _as_now(cause if is_culprit else rng.choice(others), now, shift, rng)
        if is_culprit and is_resized:
            known = _of_another_size(known, others[0], shift)
        ranks.append(known if is_culprit else _with_losses(known, rng))
    width = len(ranks) // len(world.hosts)
    hosts = [ranks[first : first + width] for first in range(0, len(ranks), width)]
    reports = [
        HostReport(f"node-{host}", 1_795_792_065_000 + rng.randrange(-_HOUR_MS, _HOUR_MS), tuple(of_host))
        for host, of_host in enumerate(hosts)
        if host not in world.lost
    ]
    rng.shuffle(reports)
    return [from_document(json.loads(json.dumps(to_document(report)))) for report in reports]


def _as_now(recorded: RankReport, now: RankReport, shift: int, rng: random.Random) -> RankReport:
    """Return the recorded stack and collectives at the place where the rank is now."""
    collectives = tuple(replace(each, sequence=each.sequence + shift) for each in recorded.collectives)
    lines = tuple(rng.sample(_NOISE, rng.randrange(3)))
    return replace(now, stack=recorded.stack, stack_source=recorded.stack_source, collectives=collectives, lines=lines)


def _of_another_size(culprit: RankReport, other: RankReport, shift: int) -> RankReport:
    """Return the culprit with the others' newest collective, on more elements."""
    newest = other.collectives[-1]
    wrong = replace(newest, sequence=newest.sequence + shift, sizes=tuple(2 * size for size in newest.sizes))
    return replace(culprit, stack=other.stack, collectives=(*culprit.collectives[:-1], wrong))


def _with_losses(rank: RankReport, rng: random.Random) -> RankReport:
    """Return the report of a waiting rank, perhaps without its stack or its dump."""
    if rng.random() < _LOST:
        rank = replace(rank, stack=(), stack_source=StackSource.NONE)
    return replace(rank, collectives=()) if rng.random() < _LOST else rank


def _is_alarm(seed: int) -> bool:
    rng = random.Random(seed)  # noqa: S311  # a window that repeats
    num_ranks = rng.choice([1, 2, 4])
    ranks = gang(num_ranks, seed, rng.choice([0.1, 1.0, 10.0, 60.0]))
    hosts = Hosts.of(ranks, rng.choice([each for each in (1, 2, 4) if num_ranks % each == 0]), rng)
    return hosts.watch(CLEAN_S) is not None
