"""``make bench``, ``make bench-NAME``: measure, print, write ``results/NAME.json``."""

import importlib
import sys

from benchmarks.figures import Figure, NothingToMeasureError, calmest, show, write

SUITES = {
    "main": ("simulation", "bell", "launches"),
    "setup": ("from_scratch",),
    "placement": ("placement", "commit"),
    "scheduler": (
        "placement",
        "decisions",
        "answers",
        "snapshot",
        "commit",
        "queue_rules",
        "queue_breadth",
        "start_ranges",
        "fragmentation",
    ),
    "judgement": ("judgement",),
    "health": ("health", "health_storm"),
    "ingest": ("ingest",),
    "host": ("host",),
    "tour": ("tour",),
    "console": ("console_pages", "console_reads"),
    "soak": ("soak",),
    "runtime": ("runtime_saves", "runtime_damage", "runtime_pace", "recovery"),
    "runtime_gpu": ("runtime_gpu",),
}
"""Name → the modules whose ``measure()`` makes its figures."""
SHORT = {"placement", "decisions", "answers", "commit"}
"""Measured ``SHORT_TIMES`` times: each run is over before a shared machine changes its pace."""
SHORT_TIMES = 3


def main(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "main"
    if name not in SUITES or len(arguments) > 1:
        sys.exit(f"one of {', '.join(SUITES)}, not: {' '.join(arguments)}")
    figures: list[Figure] = []
    try:
        for module in SUITES[name]:
            measure = importlib.import_module(f"benchmarks.{module}").measure
            figures += calmest([measure() for _ in range(SHORT_TIMES if module in SHORT else 1)])
    except NothingToMeasureError as fault:
        sys.stderr.write(f"SKIPPED, NOTHING WAS MEASURED and nothing is written: {fault}\n")
        return
    show(figures)
    print(f"written to {write(name, figures).name}")


if __name__ == "__main__":
    main(sys.argv[1:])
