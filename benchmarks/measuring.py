"""One suite at one size: its modules in turn, with the calibration loop between the groups of their figures."""

import importlib
import sys
import time
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from benchmarks import calibration
from benchmarks.figures import SKIPPED, Basis, Figure, Groups, NothingToMeasureError, calmest
from benchmarks.suites import LIMITS_MIN, SHORT, SHORT_TIMES, SUITES

FULL: Final = "full"
SMALLEST: Final = "smallest"


@dataclass(slots=True)
class Pace:
    """The samples of the calibration loop in one run, the last of which was taken right before the next figures.

    ``passes`` of the loop make a sample; one is enough where no figure is kept.
    """

    passes: int = calibration.PASSES
    samples_ms: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.samples_ms = [calibration.sample_ms(self.passes)]

    def scaled(self, groups: Groups) -> list[Figure]:
        """Measure the groups in turn, each scaled by the samples right before and after it."""
        found: list[Figure] = []
        for group in groups:
            self.samples_ms.append(calibration.sample_ms(self.passes))
            slowness = calibration.slowness_of(*self.samples_ms[-2:])
            found += [figure.scaled(slowness) for figure in group]
        return found


def measured(name: str, size: str, pace: Pace) -> list[Figure]:
    """Measure the suite.

    Raises:
        NothingToMeasureError: this machine lacks what the suite is about, or at its full size a part of it.
    """
    figures: list[Figure] = []
    began_s = time.monotonic()
    for module_name in SUITES[name]:
        try:
            figures += _measured(module_name, size, pace)
        except NothingToMeasureError as fault:
            if size == FULL or len(SUITES[name]) == 1:
                raise
            sys.stderr.write(f"{SKIPPED} by {module_name}: {fault}\n")
    if name in LIMITS_MIN:
        minutes = (time.monotonic() - began_s) / 60
        figures.append(Figure(f"{name}: the whole suite", minutes, "min", LIMITS_MIN[name], basis=Basis.CLOCK))
    return figures


def _measured(module_name: str, size: str, pace: Pace) -> list[Figure]:
    module = importlib.import_module(f"benchmarks.{module_name}")
    times = SHORT_TIMES if module_name in SHORT and size == FULL else 1
    return calmest([pace.scaled(_groups(module, size)) for _ in range(times)])


def _groups(module: ModuleType, size: str) -> Groups:
    sizes: Any = module.SIZES
    groups: Groups = module.measure(getattr(sizes, size))
    return groups
