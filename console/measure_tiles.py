"""Tiles of a page: a value with the period before, its change, its target, a state as text, and a link to details."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from console.figure_charts import Compared, amount, change, judged
from control.ledger.figures import Answer
from ledger.figures.definitions import Better, Sum, value_of
from muster.documents.csv_lines import END, line_of

Tone = Literal["good", "warn", "bad", "none", ""]
_CHANGE_TONES: Final[Mapping[str, Tone]] = {"better": "good", "worse": "warn"}
TILE_FIELDS: Final = ("group", "tile", "unit", "value", "before", "change", "target", "state")


@dataclass(frozen=True, slots=True)
class Tile:
    """One value. ``unit``: empty: a share, 0 to 1, or with ``digits`` a number. ``link``: to its details.

    ``nothing``: the words where it is None. ``bound``: the value that meets the target; None: the target is no number.
    ``note``: what is counted.
    """

    name: str
    unit: str
    value: float | None
    before: float | None
    link: str
    better: Better = "neither"
    nothing: str = "nothing was counted"
    target: str = ""
    bound: float | None = None
    note: str = ""
    digits: int | None = None

    @property
    def shown(self) -> str:
        return self._amount(self.value)

    @property
    def shown_before(self) -> str:
        return self._amount(self.before)

    @property
    def change(self) -> str:
        return change(self.value, self.before, self._unit_of_change)

    @property
    def _unit_of_change(self) -> str:
        return self.unit if self.digits is None else self.unit or "number"

    @property
    def state(self) -> str:
        """The state as text: of the target where one is a number, else of the change."""
        return self._judged[0]

    @property
    def tone(self) -> Tone:
        return self._judged[1]

    @property
    def _judged(self) -> tuple[str, Tone]:
        if self.value is None:
            return self.nothing, "none"
        if self.bound is not None:
            is_met = self.value <= self.bound if self.better == "lower" else self.value >= self.bound
            return ("target met", "good") if is_met else ("target missed", "bad")
        found = judged(self.value, self.before, self._unit_of_change, self.better)
        return found, _CHANGE_TONES.get(found, "")

    def _amount(self, value: float | None) -> str:
        if value is not None and self.digits is not None:
            return f"{value:,.{self.digits}f} {self.unit}".strip()
        return amount(value, self.unit)


@dataclass(frozen=True, slots=True)
class TileGroup:
    """Tiles of one subject. ``note``: what holds for all of them."""

    title: str
    tiles: Sequence[Tile]
    note: str = ""


def tile_of(found: Compared, name: str, link: str, nothing: str) -> Tile:
    """Return the tile of an indicator over all its groups."""
    figure = found.figure
    return Tile(
        name,
        figure.unit,
        _whole(found.now),
        _whole(found.before),
        link,
        figure.better,
        nothing,
        figure.target,
        figure.bound,
        figure.meaning,
    )


def _whole(answer: Answer | None) -> float | None:
    if answer is None:
        return None
    known = [(part, one) for series in answer.series for part, one in series.whole.sums.items()]
    parts = {part: [one for name, one in known if name == part] for part, _ in known}
    sums = {part: Sum(sum(one.num for one in ones), sum(one.total for one in ones)) for part, ones in parts.items()}
    return value_of(answer.figure, sums)


def csv_of_tiles(groups: Iterable[TileGroup]) -> Iterator[str]:
    yield line_of(TILE_FIELDS) + END
    for group in groups:
        for tile in group.tiles:
            cells = tile.name, tile.unit, tile.value, tile.before, tile.change, tile.target, tile.state
            yield line_of((group.title, *cells)) + END
