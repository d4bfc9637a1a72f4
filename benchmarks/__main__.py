"""Commands ``make bench``, ``make bench-NAME``: measure, print, write ``results/NAME.json``; and ``make bench-smoke``.

``python -m benchmarks [NAME]`` measures a suite at its full size. ``python -m benchmarks --smallest [NAME]`` runs that
suite, or every suite, at the smallest size: no bar is judged, and nothing is written into ``results``.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import measuring, runs, smoke
from benchmarks.figures import SKIPPED, NothingToMeasureError, show
from benchmarks.suites import SUITES

SMALLEST = "--smallest"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    is_smallest = SMALLEST in arguments
    names = [argument for argument in arguments if argument != SMALLEST]
    if is_smallest and not names:
        return smoke.run_all()
    name = names[0] if names else "main"
    if name not in SUITES or len(names) > 1:
        sys.exit(f"one of {', '.join(SUITES)}, not: {' '.join(names)}")
    try:
        if is_smallest:
            _try(name)
        else:
            _measure(name)
    except NothingToMeasureError as fault:
        sys.stderr.write(f"{SKIPPED}, and nothing is written: {fault}\n")
    return 0


def _measure(name: str) -> None:
    pace = measuring.Pace()
    figures = measuring.measured(name, measuring.FULL, pace)
    show(figures)
    _print_latency(pace.samples_ms)
    print(f"written to {runs.write(name, figures, pace.samples_ms, runs.RESULTS).name}")


def _try(name: str) -> None:
    """Run the suite at its smallest size and write its result where nothing is kept."""
    pace = measuring.Pace(passes=1)
    figures = [smoke.without_bar(figure) for figure in measuring.measured(name, measuring.SMALLEST, pace)]
    smoke.require_measured(name, figures)
    show(figures)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        written = runs.write(name, figures, pace.samples_ms, Path(folder))
        smoke.require_written(written)


def _print_latency(samples_ms: Sequence[float]) -> None:
    calibration = runs.run_of(samples_ms)["calibration"]
    print(
        f"This machine takes {calibration['slowness']} × the reference machine's CPU time "
        f"({calibration['median_ms']} ms a pass, {calibration['least_ms']} to {calibration['most_ms']}). "
        f"Values of basis cpu, busy and commits are scaled by that; 'measured' is the clock's value."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
