"""Command ``python -m tools.house``: measure the figures of the house and print them.

``--quick`` first times ``make quick`` for each typical change, which takes minutes. ``--write``, which
``make bench-house`` passes, writes ``benchmarks/results/house.json`` too.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from benchmarks import runs
from benchmarks.calibration import sample_ms
from tools.house.docstrings import docstring_figure
from tools.house.figure import HouseFigure
from tools.house.layers import layer_figures
from tools.house.loop import reach_figure, run_figures
from tools.house.pages import page_figures
from tools.house.quick_runs import record_quick_runs
from tools.house.sizes import size_figures
from tools.house.sources import ROOT, python_sources
from tools.import_graph import read_graph
from tools.words.findings import report_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

AREAS: Final = {"source": "code and its texts", "pages": "pages", "tests": "tests"}


def main(arguments: list[str]) -> int:
    """Return the exit code, 0 also if a bar does not hold: the result states it."""
    parser = argparse.ArgumentParser(prog="python -m tools.house")
    parser.add_argument("--quick", action="store_true", help="time make quick first, for each typical change")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/house.json")
    options = parser.parse_args(arguments)
    if options.quick:
        record_quick_runs(ROOT)
    sources, graph = python_sources(ROOT), read_graph(ROOT)
    figures = [
        *run_figures(ROOT),
        reach_figure(ROOT, graph),
        *size_figures(sources),
        *layer_figures(ROOT, graph),
        docstring_figure(ROOT, sources),
        *_word_figures(),
        *page_figures(ROOT),
    ]
    _print(figures)
    if options.write:
        runs.write("house", figures, [sample_ms()])
    return 0


def _word_figures() -> Iterator[HouseFigure]:
    report = report_of(ROOT)
    for area, name in AREAS.items():
        share = round(report.per_hundred_words(area), 3)
        peers = {"words": report.words[area], "pronouns": report.number("pronoun", area)}
        yield HouseFigure(f"pronouns of persons for things in {name}", share, "in 100 words", 0.4, peers)
    for rule, name in {"phrase": "phrases", "name": "names", "constant": "constants with two values"}.items():
        by_area = {area: report.number(rule, area) for area in AREAS}
        yield HouseFigure(f"refused {name}", sum(by_area.values()), "uses", 0, by_area)


def _print(figures: Sequence[HouseFigure]) -> None:
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        value = "not recorded" if figure.value is None else f"{figure.value:g}"
        mark = "holds" if figure.holds else "FAILS"
        sys.stdout.write(f"{mark}  {figure.name:{width}}  {value:>12}  bar {figure.bar:g} {figure.unit}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
