"""Slowed ranks, live: gloo ranks under ``muster run``, one of which takes 20 % longer for a step.

The ranks sleep where others compute, so that they do not slow each other on two cores. Runs begin together, except for
the one whose slow rank shares its processor with busy processes: these would slow the ranks of other runs too.
"""

import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_stragglers import CAUSE_BAR, NAMED_BAR
from muster.domain.policy.stragglers import StragglerPolicy
from muster.domain.policy.watch import WatchPolicy
from tests.workers.local.runs import run_job

PROGRAM: Final = Path(__file__).resolve().parents[1] / "tests" / "train" / "straggling_program.py"
BASE_S: Final = 0.2
SLOWER: Final = 0.2
WINDOW_S: Final = 1.5
ONSET: Final = 32
"""Four windows of 8 steps each: the rank became slow, and has no additional work since its first step."""
STEPS: Final = ONSET + 56
"""Seven windows more: five, one in which reports overlap the onset, and the last one, which does not close."""
CULPRIT: Final = 1
NUM_RANKS: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One run: its kind, and words of the cause that is right. ``busy_s``: processor time of the slow rank's step."""

    kind: str
    cause: str
    busy_s: float = 0.0


CASES: Final = (
    Case("compute", "it computes longer"),
    Case("data", "it waits for its data"),
    Case("garbage", "its host or process"),
    Case("cpu", "ready without a processor", busy_s=0.1),
)
SIZES: Final = Sizes(full=CASES, smallest=())


def measure(size: Sequence[Case]) -> Groups:
    """Measure. At the smallest size nothing is live: `tests/workers/local/test_stragglers.py` has such a run."""
    if not size:
        return
    with tempfile.TemporaryDirectory(prefix="muster-stragglers-") as name, ThreadPoolExecutor(len(size)) as pool:
        size = sorted(size, key=lambda case: case.busy_s > 0)
        together = [case for case in size if not case.busy_s]
        found = list(pool.map(lambda case: _sentences(case, Path(name) / case.kind), together))
        found += [_sentences(case, Path(name) / case.kind) for case in size[len(together) :]]
    for case, sentences in zip(size, found, strict=True):
        print(f"{case.kind:<10} {sentences}", flush=True)
    named = [
        bool(sentences) and all(f"straggler: Rank {CULPRIT} " in sentence for sentence in sentences)
        for sentences in found
    ]
    right = [any(case.cause in sentence for sentence in sentences) for case, sentences in zip(size, found, strict=True)]
    live = {"live": float(len(size))}
    share, causes = 100 * sum(named) / len(size), 100 * sum(right) / len(size)
    yield [
        Figure("stragglers live: named", share, "%", NAMED_BAR, "higher", live, basis=Basis.COUNT),
        Figure("stragglers live: cause right", causes, "%", CAUSE_BAR, "higher", live, basis=Basis.COUNT),
    ]


def _sentences(case: Case, folder: Path) -> list[str]:
    """Return what the run states of stragglers."""
    words = [case.kind, "--base-s", str(BASE_S), "--more-s", str(SLOWER * BASE_S)]
    words += ["--busy-s", str(case.busy_s), "--rank", str(CULPRIT), "--at", str(ONSET), "--steps", str(STEPS)]
    program = {"script": str(PROGRAM), "args": words, "env": {"OMP_NUM_THREADS": "1"}}
    watch = WatchPolicy(stragglers=StragglerPolicy(window_s=WINDOW_S))
    reported: list[str] = []
    run_job(folder, program, watch, reported.append, ranks=NUM_RANKS, restart={"max_restarts": 0})
    return [each for each in reported if each.startswith("straggler: ")]
