"""Planted faults of a resume: `muster train check` compares a straight run with a killed one, and names the cause.

The runs are forks, so that each takes a second; their records go to the command's own judge.
"""

import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from benchmarks.watch_ranks import zygote
from tests.train.reproducibility.check_case import Check
from tests.train.reproducibility.planted import CLEAN, CLEAN_PROGRAM, FAULTS, PROGRAM
from tests.train.train_case import Training
from watch.reproducibility.judge import Judgement

SHARED: Final = "shared"
"""The fault that shows on two ranks."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the benchmark: planted faults, and kinds of programs that resume exactly."""

    faults: tuple[str, ...]
    clean: tuple[str, ...]


SIZES: Final = Sizes(full=Size(tuple(FAULTS), tuple(CLEAN)), smallest=Size(("sampler",), ()))


def measure(size: Size) -> Groups:
    with tempfile.TemporaryDirectory(prefix="muster-resumes-") as name:
        folder = Path(name)
        found = [_is_found(folder / fault, fault) for fault in size.faults]
        alarms = {kind: float(_is_alarm(folder / f"clean-{kind}", kind)) for kind in size.clean}
        alarms["faultless"] = float(not _check(folder / "faultless", PROGRAM, "", num_ranks=1).is_same)
    share = 100 * sum(found) / len(found)
    live, clean = {"live": float(len(found))}, {"kinds": float(len(alarms)), **alarms}
    yield [
        Figure("resume: planted faults found", share, "%", 100.0, "higher", live, basis=Basis.COUNT),
        Figure("resume: false alarms", sum(alarms.values()), "", 0.0, peers=clean, basis=Basis.COUNT),
    ]


def _is_found(folder: Path, fault: str) -> bool:
    """Return whether the fault is found by its cause and by what differs first."""
    cause, tensor, _ = FAULTS[fault]
    found = _check(folder, PROGRAM, fault, num_ranks=2 if fault == SHARED else 1)
    return (found.is_same, found.cause, found.tensor) == (False, cause, tensor)


def _is_alarm(folder: Path, kind: str) -> bool:
    """Return whether a program that resumes exactly is found to differ."""
    return not _check(folder, CLEAN_PROGRAM, kind, num_ranks=CLEAN[kind]).is_same


def _check(folder: Path, program: Path, kind: str, *, num_ranks: int) -> Judgement:
    folder.mkdir()
    words = (kind,) if kind else ()
    with closing(Training(zygote(), folder / "job")) as training:
        return Check(training, folder, program, *words, num_ranks=num_ranks).run()
