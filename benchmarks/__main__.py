"""``make bench``: measure, print, write ``results/main.json``."""

from benchmarks import bell, launches, simulation
from benchmarks.figures import show, write


def main() -> None:
    figures = [figure for measure in (simulation.measure, bell.measure, launches.measure) for figure in measure()]
    show(figures)
    print(f"written to {write('main', figures).name}")


if __name__ == "__main__":
    main()
