"""The debug page of a job: its columns, its charts, its table as CSV, and why there is nothing to show."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from console.job_ranks import MOST_CELLS, OWN_LEVELS, RankCell, duration
from control.jobs.gang_hosts import GangHosts, RankFaults
from control.jobs.gang_times import GangTimes
from control.jobs.rank_figures import FIGURES_OF_RANKS, RANKS_SAMPLED, AttemptShown, Order, RankFigure, RankRow
from control.jobs.rank_spreads import RANKS_READ, Histogram
from muster.documents.csv_lines import END, line_of
from muster.domain.states import AttemptState

MIB: Final = 1 << 20
RANK_CSV_FIELDS: Final = ("rank", "node_id", "node", "gpu", "gpu_uuid", "is_slow", *FIGURES_OF_RANKS)
_DRAWN: Final[Mapping[RankFigure, tuple[str, str]]] = {
    RankFigure.COLLECTIVE: ("Collectives a step in ms", "ms"),
    RankFigure.WAIT: ("Wait for others a step in ms", "ms"),
    RankFigure.DATA: ("Wait for data a step in ms", "ms"),
    RankFigure.SAMPLES_PER_S: ("Samples a second", ""),
    RankFigure.TOKENS_PER_S: ("Tokens a second", ""),
    RankFigure.MEMORY: ("Peak memory in GiB", "GiB"),
}
DRAWN: Final = tuple(_DRAWN)
_SCALES: Final[Mapping[str, float]] = {"ms": 1_000.0, "GiB": 1 / 1_024}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table by rank. ``title``: what the figure is."""

    figure: RankFigure
    name: str
    title: str


COLUMNS: Final = (
    Column(RankFigure.RATIO, "Own compute", "own compute ÷ the median of ranks with equal work"),
    Column(RankFigure.STEP, "Step", "its newest step; below: p50 and p99 of the steps that are kept of it"),
    Column(RankFigure.DATA, "Data", "wait for samples a step"),
    Column(
        RankFigure.COLLECTIVE, "Collective", "exchange with other ranks a step, as far as computing did not hide it"
    ),
    Column(RankFigure.WAIT, "Wait", "wait for other ranks a step"),
    Column(RankFigure.SAMPLES_PER_S, "Samples/s", "samples a second; below: all samples of this attempt"),
    Column(RankFigure.TOKENS_PER_S, "Tokens/s", "tokens a second"),
    Column(RankFigure.MEMORY, "Memory", "the peak of its tensors; below: as a share of its GPU's memory"),
)


def in_words(figure: RankFigure, value: float | None) -> str:
    """Return a figure with its unit."""
    if value is None:
        return "–"
    if figure is RankFigure.RATIO:
        return f"{value:.2f} ×"
    if figure.endswith("_s") and not figure.endswith("per_s"):
        return duration(value)
    if figure is RankFigure.MEMORY:
        return f"{value / 1_024:,.3g} GiB"
    return f"{value:,.0f}" if value >= 1_000 or figure is RankFigure.SAMPLES else f"{value:.3g}"


def share_of_gpu(row: RankRow) -> str:
    """Return the peak of a rank's memory as a share of its GPU's; empty where either is unknown."""
    used_mib = row.values[RankFigure.MEMORY]
    return "" if used_mib is None or not row.gpu_bytes else f"{used_mib * MIB / row.gpu_bytes:.0%} of its GPU"


def slow_in_words(row: RankRow) -> str:
    """Return how far a slow rank is from the median."""
    own, ratio = row.values[RankFigure.OWN], row.values[RankFigure.RATIO]
    return f"own compute {in_words(RankFigure.OWN, own)} a step, {in_words(RankFigure.RATIO, ratio)} the median"


def order_of(column: RankFigure, sort: RankFigure, order: Order) -> Order:
    """Return the order that the head of a column asks for: the other one where it is sorted by that already."""
    first = Order.UP if column is RankFigure.RANK else Order.DOWN
    if column is not sort:
        return first
    return Order.UP if order is Order.DOWN else Order.DOWN


def nothing_in_words(attempt: AttemptShown | None, gang: GangTimes | None) -> tuple[str, str] | None:
    """Return why there is nothing to show, as a title and a sentence; None: a rank has reported."""
    if attempt is None:
        return "It was never placed", "Once an attempt runs, each rank that trains by muster.train reports here."
    if gang is not None and gang.num_ranks:
        return None
    if attempt.state is AttemptState.ENDED:
        words = "It ended before its first report, or its program does not train by muster.train."
        return f"No rank of attempt {attempt.number} has reported", words
    if attempt.running_at is None:
        return f"Attempt {attempt.number} has not started yet", "Its ranks report once their programs run."
    words = "A program on muster.train reports its steps and their parts by itself; others only print."
    return f"No rank of attempt {attempt.number} has reported yet", words


def charts_of(
    steps: Histogram | None, spreads: Mapping[RankFigure, Histogram], num_ranks: int, chosen: int | None
) -> dict[str, Any]:
    """Return what static/charts.js draws: steps of all ranks and of the chosen one, then each figure over the ranks."""
    charts = [] if steps is None else [_steps(steps, num_ranks, chosen)]
    charts += [_over_ranks(figure, spreads[figure], num_ranks) for figure in _DRAWN if figure in spreads]
    return {"charts": charts, "refresh_s": None}


def _steps(found: Histogram, num_ranks: int, chosen: int | None) -> dict[str, Any]:
    """Return shares of steps, since all ranks have many times the steps of one."""
    names = "all ranks" if num_ranks <= RANKS_READ else f"{RANKS_READ:,} ranks of {num_ranks:,}"
    lines = [{"name": names, "points": [[_short(one.low * 1000), _share(one.num, found.num)] for one in found.classes]}]
    note = f"{found.num:,} steps that are kept of {names}: {_percentiles(found.percentiles)}."
    if chosen is not None and found.percentiles_chosen is not None:
        points = [[_short(one.low * 1000), _share(one.num_chosen, found.num_chosen)] for one in found.classes]
        lines.append({"name": f"rank {chosen}", "points": points})
        note += f" Rank {chosen}, {found.num_chosen:,} steps: {_percentiles(found.percentiles_chosen)}."
    elif chosen is not None:
        note += f" Of rank {chosen} no step is known."
    return {**_bars("Step time in ms", "% of steps", "ms", found, note), "lines": lines, "bounds": [0, 100]}


def _over_ranks(figure: RankFigure, found: Histogram, num_ranks: int) -> dict[str, Any]:
    title, unit = _DRAWN[figure]
    scale = _SCALES.get(unit, 1.0)
    p50, p95, p99 = (in_words(figure, value) for value in found.percentiles)
    names = "rank" if found.num == 1 else "ranks" if num_ranks <= RANKS_SAMPLED else f"of {num_ranks:,} ranks"
    note = f"As {found.num:,} {names} reported last: p50 {p50}, p95 {p95}, p99 {p99}."
    points = [[_short(one.low * scale), one.num] for one in found.classes]
    return {**_bars(title, "ranks", unit, found, note), "lines": [{"name": "ranks", "points": points}]}


def _bars(title: str, counted: str, unit: str, found: Histogram, note: str) -> dict[str, Any]:
    words = f"{note} The widths of the classes grow by a factor." if found.is_by_factor else note
    x = f"from {unit}".strip()
    return {"title": title, "unit": counted, "note": words, "x": x, "is_bars": True, "marks": []}


def _percentiles(values: Sequence[float]) -> str:
    return ", ".join(f"p{share} {duration(value)}" for share, value in zip((50, 95, 99), values, strict=True))


def _share(number: int, of: int) -> float:
    return round(100 * number / of, 3) if of else 0.0


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def csv_of(pieces: Iterable[Sequence[RankRow]]) -> Iterator[str]:
    """Yield the table by rank in pieces: times in seconds, memory in MiB, each figure as it was reported."""
    head = line_of(RANK_CSV_FIELDS) + END
    for rows in pieces:
        yield head + "".join(f"{line_of(_cells(row))}{END}" for row in rows)
        head = ""
    if head:
        yield head


def _cells(row: RankRow) -> list[Any]:
    place = (row.rank, row.node_id, row.node_name, row.local_index, row.gpu_uuid, str(row.is_slow).lower())
    return [*place, *(row.values[figure] for figure in FIGURES_OF_RANKS)]


@dataclass(frozen=True, slots=True)
class HostGrid:
    """Hosts side by side. ``fold``: hosts that share one cell, which shows the worst one."""

    cells: Sequence[RankCell]
    num_hosts: int
    num_odd: int
    fold: int

    @property
    def words(self) -> str:
        """The picture as text."""
        hosts = "host has a rank" if self.num_odd == 1 else "hosts have a rank"
        return f"{self.num_hosts:,} hosts; {self.num_odd:,} {hosts} that is slow, silent or has a fault"


def host_grid(hosts: GangHosts) -> HostGrid:
    """Return a cell of each host, or of each few neighbours."""
    is_odd, num = hosts.is_odd, len(hosts.numbers)
    fold = -(-num // MOST_CELLS)
    weight = np.nan_to_num(hosts.ratio) + np.where(is_odd, 1e9, 0.0)
    worst = [first + int(np.argmax(weight[first : first + fold])) for first in range(0, num, max(fold, 1))]
    cells = [_host_cell(int(hosts.numbers[at]), float(hosts.ratio[at]), is_odd=bool(is_odd[at])) for at in worst]
    return HostGrid(cells, num, int(is_odd.sum()), fold)


def _host_cell(number: int, ratio: float, *, is_odd: bool) -> RankCell:
    has_pace = not np.isnan(ratio)
    longest = f"longest own compute {ratio:.2f} times the median" if has_pace else "no pace"
    words = f"host {number}: {longest}{'; stands out' if is_odd else ''}"
    return RankCell(number, bisect_right(OWN_LEVELS, ratio) if has_pace else 0, None, is_odd, words)


def faults_in_words(faults: RankFaults | None) -> str:
    """Return the known faults of a rank; empty without one."""
    if faults is None:
        return ""
    words = [] if faults.standing is None else [f"GPU {faults.standing.value.lower()}"]
    words += [f"verdict: {kind.value}" for kind in faults.verdicts]
    return "; ".join([*words, *(["out of memory"] if faults.is_short_of_memory else [])])
