"""The type of a figure's definition, and how its value follows from what is stored of its parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Literal

from ledger.figures.sketch import Sketch

Better = Literal["higher", "lower", "neither"]


class Kind(StrEnum):
    """How a value follows from its parts.

    SHARE: the number of ``top`` by the number of ``bottom``. MEAN: the total of ``top`` by the number of ``bottom``.
    RATE: the total of ``top`` by the total of ``bottom``.
    """

    SHARE = "share"
    MEAN = "mean"
    RATE = "rate"


class Source(StrEnum):
    """What a figure is counted from.

    RECORDS: jobs, attempts, steps and checkpoints. GPUS: samples of GPUs and ports. LEDGER: accounts of GPU time, when
    the figure is read.
    """

    RECORDS = "records"
    GPUS = "gpus"
    LEDGER = "ledger"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure, defined once.

    ``indicator``: of M1 to M15. ``unit``: of its value; empty: a share, 0 to 1. ``meaning``: what is counted, and in
    which hour. ``counted_from``: what is read. ``excluded``: exclusions, and what is counted apart. ``parts``: name →
    words. ``top``, ``bottom``: parts that its kind divides. ``spread``: parts whose percentiles are its own; empty: it
    has none. ``target``: as text; empty: none is named. ``bound``: the value that meets it, in the figure's unit; None:
    the target is no number. ``facts_of``: the figure whose stored facts it is made of; empty: its own.
    """

    name: str
    indicator: str
    unit: str
    better: Better
    meaning: str
    counted_from: str
    excluded: str
    source: Source = Source.RECORDS
    kind: Kind = Kind.SHARE
    parts: Mapping[str, str] = field(default_factory=dict)
    top: tuple[str, ...] = ()
    bottom: tuple[str, ...] = ()
    spread: tuple[str, ...] = ()
    target: str = ""
    bound: float | None = None
    facts_of: str = ""

    def __post_init__(self) -> None:
        unknown = {*self.top, *self.bottom, *self.spread} - self.parts.keys()
        if unknown:
            raise ValueError(f"{self.name} has no parts {sorted(unknown)}")

    @property
    def stored_as(self) -> str:
        return self.facts_of or self.name


@dataclass(frozen=True, slots=True)
class Sum:
    """A part over some time: ``num`` observations, their ``total`` in the part's unit, and how they are spread."""

    num: int = 0
    total: float = 0.0
    sketch: Sketch = field(default_factory=Sketch)


NOTHING_COUNTED: Final = Sum()


def value_of(figure: Figure, sums: Mapping[str, Sum]) -> float | None:
    """Return the figure's value; None where nothing was counted that it could divide by."""
    top = [sums.get(part, NOTHING_COUNTED) for part in figure.top]
    bottom = [sums.get(part, NOTHING_COUNTED) for part in figure.bottom]
    above = _num(top) if figure.kind is Kind.SHARE else _total(top)
    below = _total(bottom) if figure.kind is Kind.RATE else _num(bottom)
    return above / below if below else None


def _num(sums: Iterable[Sum]) -> float:
    return float(sum(one.num for one in sums))


def _total(sums: Iterable[Sum]) -> float:
    return sum(one.total for one in sums)
