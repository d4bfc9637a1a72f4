"""Planted faults of a resume: `muster train check` compares a straight run with a killed one, and names the cause.

The runs are forks, so that each takes a second; their records go to the command's own judge.
"""

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_ranks import zygote
from tests.train.reproducibility.check_case import Check
from tests.train.reproducibility.planted import FAULTS, PROGRAM
from tests.train.train_case import Training
from watch.reproducibility.judge import Judgement

SHARED: Final = "shared"
"""The fault that shows on two ranks."""
SIZES: Final = Sizes(full=tuple(FAULTS), smallest=("sampler",))


def measure(size: Sequence[str]) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-resumes-") as name:
        found = [_is_found(Path(name) / fault, fault) for fault in size]
        is_clean = _check(Path(name) / "clean", "").is_same
    peers = {"live": float(len(found)), "false alarms": 0.0 if is_clean else 1.0}
    share = 100 * sum(found) / len(found)
    yield [Figure("resume: planted faults found", share, "%", 100.0, "higher", peers, basis=Basis.COUNT)]


def _is_found(folder: Path, fault: str) -> bool:
    """Return whether the fault is found by its cause and by what differs first."""
    cause, tensor, _ = FAULTS[fault]
    found = _check(folder, fault)
    return (found.is_same, found.cause, found.tensor) == (False, cause, tensor)


def _check(folder: Path, fault: str) -> Judgement:
    folder.mkdir()
    words = (fault,) if fault else ()
    with closing(Training(zygote(), folder / "job")) as training:
        return Check(training, folder, PROGRAM, *words, num_ranks=2 if fault == SHARED else 1).run()
