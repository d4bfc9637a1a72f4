"""Writer of docs/reference/figures.md (``make figure-reference``): what each indicator means.

Run as ``python -m tools.figure_reference``, with ``--check`` to hold the page to the definitions. All words stand with
the definitions, in ``ledger/figures``.
"""

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

from ledger.figures.definitions import Figure, Kind
from ledger.figures.indicators import INDICATORS
from tools.generated_page import write_or_check

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "reference" / "figures.md"
HEAD: Final = """\
<!-- Written by `make figure-reference` from the definitions of the indicators. Change those, not this page. -->

# Indicators

Each figure is defined once, in `ledger/figures`. How to read them: [indicators](../operator/indicators.md).

A value is made of parts. A *share* divides numbers, a *mean* a total by a number, a *rate* a total by a total.
Percentiles are at most 1 % off, and merge over hours and groups.
"""
_DIVIDES: Final = {
    Kind.SHARE: ("the number of {}", "the number of {}"),
    Kind.MEAN: ("the total of {}", "the number of {}"),
    Kind.RATE: ("the total of {}", "the total of {}"),
}


def written() -> str:
    """Return the page."""
    return "".join((HEAD, *(part for each in groupby(INDICATORS.values(), _indicator) for part in _section(*each))))


def _indicator(figure: Figure) -> str:
    return figure.indicator


def _section(indicator: str, figures: Iterator[Figure]) -> Iterator[str]:
    yield f"\n## {indicator}\n"
    for figure in figures:
        yield f"\n### {figure.name}\n\n{figure.meaning}\n\n| | |\n|---|---|\n"
        yield from (f"| {name} | {words} |\n" for name, words in _rows(figure) if words)


def _rows(figure: Figure) -> Iterator[tuple[str, str]]:
    yield "unit", figure.unit or "share, 0 to 1"
    yield "better", figure.better
    yield "target", figure.target
    yield "counted from", figure.counted_from
    yield "excluded", figure.excluded
    above, below = _DIVIDES[figure.kind]
    yield "value", f"{above.format(_named(figure.top))}, by {below.format(_named(figure.bottom))}"
    yield "percentiles of", _named(figure.spread)
    for part, words in figure.parts.items():
        yield f"part `{part}`", words


def _named(parts: tuple[str, ...]) -> str:
    return " + ".join(f"`{part}`" for part in parts)


def main(arguments: list[str]) -> int:
    return write_or_check(
        PAGE, written(), arguments, source="the definitions of indicators", command="make figure-reference"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
