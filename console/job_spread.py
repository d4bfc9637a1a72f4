"""The spread of each figure over the ranks of a job as rows of a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from console.job_ranks import duration
from control.jobs.rank_views import GpuNow
from muster.domain.spread import Figure, OddRank, Spread

ODD_NAMED: Final = 4
_FIGURES: Final[Mapping[Figure, str]] = {
    Figure.MFU: "MFU",
    Figure.STEP: "Step time",
    Figure.OWN: "Own compute",
    Figure.WAIT: "Wait",
    Figure.COLLECTIVE: "Collective time",
    Figure.UTILISATION: "GPU utilisation",
    Figure.POWER: "GPU power",
    Figure.CLOCK: "SM clock",
    Figure.TEMPERATURE: "GPU temperature",
}
OF_GPUS: Final[Mapping[Figure, str]] = {
    Figure.UTILISATION: "%",
    Figure.POWER: "W",
    Figure.CLOCK: "MHz",
    Figure.TEMPERATURE: "°C",
}


@dataclass(frozen=True, slots=True)
class SpreadRow:
    """One figure. ``least`` and ``most``: value and the rank or GPU that has it; ``odd``: ranks or GPUs that stand
    out, as text.
    """

    name: str
    least: tuple[str, str]
    usual: str
    most: tuple[str, str]
    odd: str


def spread_rows(spreads: Sequence[Spread], gpus: Sequence[GpuNow]) -> list[SpreadRow]:
    """Return a row for each figure that the page names."""
    names = {gpu.number: _gpu(gpu) for gpu in gpus}
    return [_row(each, names if each.figure in OF_GPUS else {}) for each in spreads if each.figure in _FIGURES]


def named(figures: Sequence[Figure]) -> str:
    """Return the figures by which a rank stands out as text."""
    names = (_FIGURES[figure] for figure in figures)
    return ", ".join(name if name[:2].isupper() else name.lower() for name in names)  # GPU, SM and MFU stay


def _gpu(gpu: GpuNow) -> str:
    place = f"{gpu.node_name}, GPU {gpu.local_index}"
    return f"rank {gpu.number} ({place})" if gpu.is_rank else place


def _row(each: Spread, names: Mapping[int, str]) -> SpreadRow:
    def of(number: int) -> str:
        return names.get(number, f"rank {number}")

    def odd(one: OddRank) -> str:
        ratio = "" if one.ratio is None else f", {one.ratio:.2f} times its peers'"
        return f"{of(one.rank)}{ratio}"

    least, most = each.lowest, each.highest
    more = len(each.odd) - ODD_NAMED
    told = [odd(one) for one in each.odd[:ODD_NAMED]] + ([f"{more:,} more"] if more > 0 else [])
    return SpreadRow(
        _FIGURES[each.figure],
        (_in_words(each.figure, least[0]), of(least[1])),
        _in_words(each.figure, each.median),
        (_in_words(each.figure, most[0]), of(most[1])),
        "; ".join(told),
    )


def _in_words(figure: Figure, value: float) -> str:
    if figure in OF_GPUS:
        return f"{value:,.0f} {OF_GPUS[figure]}"
    return f"{value * 100:.3g} %" if figure is Figure.MFU else duration(value)
