"""Values that are no numbers, at several steps and ranks of real gloo ranks: `make soak` tries 200.

Nothing is GOOD after the value, the newest finite checkpoint stays, and the run is rolled back or ends as diverged.
"""

import math
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_corruption import LAST_LIVE_STEP, WATCHED
from benchmarks.watch_ranks import zygote
from muster.train.runtime.exit_codes import EXIT_DIVERGED
from tests.train.train_case import Attempt, Training

NUM_RANKS: Final = 2
EVERY: Final = 4
"""Steps from checkpoint to checkpoint."""


@dataclass(frozen=True, slots=True)
class Case:
    """The step with the value, its rank, and the job's rule."""

    at: int
    rank: int
    rule: str

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint with finite values; 0: there is none."""
        return self.at // EVERY * EVERY

    @property
    def is_over(self) -> bool:
        return self.rule == "stop" or self.newest == 0


CASES: Final = (
    Case(6, 0, "stop"),
    Case(9, 1, "rollback"),
    Case(13, 0, "skip"),
    Case(11, 1, "stop"),
    Case(5, 0, "rollback"),
    Case(3, 1, "rollback"),
    Case(14, 1, "skip"),
    Case(10, 0, "rollback"),
)
SIZES: Final = Sizes(full=CASES, smallest=CASES[:2])


def measure(size: Sequence[Case]) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-nan-") as name:
        found = [_is_survived(Path(name) / str(number), case) for number, case in enumerate(size)]
    peers = {"live": float(len(found))}
    share = 100 * sum(found) / len(found)
    yield [Figure("NaN: nothing good after it", share, "%", 100.0, "higher", peers, basis=Basis.COUNT)]


def _is_survived(folder: Path, case: Case) -> bool:
    words = ("last_weight", "--at", str(case.at), "--rank", str(case.rank), "--on-fault", case.rule, "--check", "0")
    with closing(Training(zygote(), folder)) as training:
        resume = '{"good_after_steps": 2}'
        run = training.start(*words, num_ranks=NUM_RANKS, program=WATCHED, MUSTER_RESUME=resume)
        codes = run.ended()
        good = [int(path.parents[1].name[-8:]) for path in training.checkpoints.glob("step-*/*/GOOD")]
        kept = [int(name[5:13]) for name in training.generations()]
    if case.is_over:
        is_kept = kept[-1:] == ([case.newest] if case.newest else [])
        return codes == [EXIT_DIVERGED] * NUM_RANKS and is_kept and all(step <= case.newest for step in good)
    return codes == [0] * NUM_RANKS and _is_finite_to_the_end(run)


def _is_finite_to_the_end(run: Attempt) -> bool:
    losses = {step: float(words[0]) for step, words in run.steps[0].items()}
    return all(map(math.isfinite, losses.values())) and max(losses) == LAST_LIVE_STEP
