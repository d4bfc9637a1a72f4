"""``make bench``: measure, print, write ``results/main.json``. ``ARGS=--all`` also sets up a clone and tests it."""

import sys

from benchmarks import bell, from_scratch, launches, simulation
from benchmarks.figures import Figure, show, write


def main(arguments: list[str]) -> None:
    measures = [simulation.measure, bell.measure, launches.measure]
    if arguments == ["--all"]:
        measures.append(from_scratch.measure)
    elif arguments:
        sys.exit(f"the benchmarks know --all and nothing else: {' '.join(arguments)}")
    figures: list[Figure] = [figure for measure in measures for figure in measure()]
    show(figures)
    print(f"written to {write('main', figures).name}")


if __name__ == "__main__":
    main(sys.argv[1:])
