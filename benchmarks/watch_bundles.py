"""Root causes of labelled bundles of logs and dumps, 20 of which were written before the judge."""

from pathlib import Path
from typing import Final

from benchmarks.figures import Basis, Figure, Groups
from benchmarks.sizes import Sizes
from tests.watch.bundles.labelled import bundles_of, is_right
from watch.forensics.judge import judge_hang

FOLDER: Final = Path(__file__).resolve().parents[1] / "tests" / "watch" / "bundles"
FIRST: Final = "first_twenty"
BAR: Final = 95.0
SIZES: Final = Sizes(full=(FIRST, "recorded", "further"), smallest=(FIRST,))


def measure(size: tuple[str, ...]) -> Groups:
    by_file = {name: bundles_of(FOLDER / f"{name}.json") for name in size}
    right = {name: [is_right(each, judge_hang(each.reports)) for each in found] for name, found in by_file.items()}
    every = [each for found in right.values() for each in found]
    percent, of_first = 100 * sum(every) / len(every), 100 * sum(right[FIRST]) / len(right[FIRST])
    peers = {"bundles": float(len(every)), "from real gloo ranks": float(len(right.get("recorded", ())))}
    peers_first = {"bundles": float(len(right[FIRST]))}
    yield [
        Figure("bundles: root cause right", percent, "%", BAR, "higher", peers, basis=Basis.COUNT),
        Figure("bundles: of before the judge", of_first, "%", BAR, "higher", peers_first, basis=Basis.COUNT),
    ]
