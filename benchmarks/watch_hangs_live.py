"""Hangs of six kinds, live: real gloo ranks under ``muster run`` and its watch, by the default policy.

All runs begin together. A hang's time is from the moment at which the program states that it stands still until the
run prints the verdict.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_hangs import RIGHT_BAR, VERDICT_BAR_S
from muster.domain.policy.watch import KnownLimits, WatchPolicy
from tests.workers.local.runs import run_job

PROGRAM: Final = Path(__file__).resolve().parents[1] / "tests" / "workers" / "local" / "hanging_program.py"
HANGS_AT: Final = "stands still"


@dataclass(frozen=True, slots=True)
class Case:
    """One run: its kind, its ranks, the rank that stands still, and the cause that is right."""

    kind: str
    num_ranks: int
    culprit: int
    cause_words: str


CASES: Final = (
    Case("stopped", 2, 1, "stopped"),
    Case("skipped", 3, 2, "all_reduce"),
    Case("gather", 4, 3, "all_gather"),
    Case("endless", 2, 0, "stand_still ("),
    Case("loader", 3, 1, "__iter__ ("),
    Case("storage", 4, 0, "stand_still ("),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark. ``policy``: of the watch; the default one where the verdict's time counts.

    ``step``: at which the rank stands still. A step takes 0.15 s and more, so before 30 the watch sees some seconds.
    """

    cases: tuple[Case, ...]
    policy: WatchPolicy
    step: int


SIZES: Final = Sizes(
    full=Size(CASES, WatchPolicy(), step=30),
    smallest=Size(
        CASES[:1], WatchPolicy(known=KnownLimits(step_s=2.5, data_s=2.5, eval_s=2.5, first_step_s=15)), step=8
    ),
)


@dataclass(slots=True)
class Seen:
    """What one run showed, with the times of the hang and of the verdict."""

    stood_s: float | None = None
    verdict_s: float | None = None
    sentence: str = ""
    reported: list[str] = field(default_factory=list)

    def show(self, _stream: str, line: str) -> None:
        if HANGS_AT in line:
            self.stood_s = time.monotonic()

    def report(self, words: str) -> None:
        self.reported.append(words)
        if words.startswith("hang: ") and self.verdict_s is None:
            self.verdict_s, self.sentence = time.monotonic(), words

    @property
    def seconds(self) -> float:
        return 600.0 if self.stood_s is None or self.verdict_s is None else self.verdict_s - self.stood_s


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-hangs-") as name, ThreadPoolExecutor(len(size.cases)) as pool:
        found = list(pool.map(lambda case: _run(case, Path(name) / case.kind, size), size.cases))
    yield _figures(size.cases, found)


def _figures(cases: Sequence[Case], found: Sequence[tuple[Seen, int | None]]) -> list[Figure]:
    right = [culprit == case.culprit for case, (_, culprit) in zip(cases, found, strict=True)]
    causes = [case.cause_words in seen.sentence for case, (seen, _) in zip(cases, found, strict=True)]
    for case, (seen, _) in zip(cases, found, strict=True):
        print(f"{case.kind:<10} {seen.seconds:5.1f} s  {seen.sentence or seen.reported}", flush=True)
    times = [seen.seconds for seen, _ in found]
    live = {"live": float(len(found)), "causes right": float(sum(causes))}
    peers = {**live, "median": statistics.median(times)}
    percent = 100 * statistics.mean(right)
    return [
        Figure("hangs live: verdict, the longest", max(times), "s", VERDICT_BAR_S, peers=peers, basis=Basis.CLOCK),
        Figure("hangs live: culprit right", percent, "%", RIGHT_BAR, "higher", live, basis=Basis.COUNT),
    ]


def _run(case: Case, folder: Path, size: Size) -> tuple[Seen, int | None]:
    """Run a case to its end. Return what it showed, and the rank that its attempt names."""
    words = [case.kind, str(case.culprit), str(size.step)]
    program = {"script": str(PROGRAM), "args": words, "env": {"OMP_NUM_THREADS": "1"}}
    fields: dict[str, Any] = {"restart": {"max_restarts": 0}, "on_hang": "hold"}
    seen = Seen()
    ended = run_job(folder, program, size.policy, seen.report, seen.show, ranks=case.num_ranks, **fields)
    return seen, ended["attempts"][-1]["culprit_rank"]
