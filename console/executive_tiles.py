"""The tiles of the executive page, in groups."""

from typing import Final

from console.executive import Board
from console.measure_tiles import Tile, TileGroup, tile_of
from console.ranges import Shown
from console.time_tiles import time_group
from control.ledger.read import LONGEST
from ledger.figures.definitions import Better

_CAPACITY: Final[tuple[tuple[str, str, Better], ...]] = (
    ("Delivered", "num_gpus", "higher"),
    ("Healthy", "num_healthy", "higher"),
    ("Reserved", "num_reserved", "neither"),
    ("In use", "num_in_use", "neither"),
)


def tile_groups(found: Board, chosen: Shown) -> list[TileGroup]:
    """Return the tiles of what was read. ``chosen``: the stretch that links lead on with."""
    time = time_group(found.now.time, found.before.time, f"/console/utilisation?{chosen.query()}")
    return [_of_jobs(found, chosen), time, _of_capacity(found, chosen)]


def _of_jobs(found: Board, chosen: Shown) -> TileGroup:
    figures, query = "/console/figures", chosen.query()
    tiles = (
        tile_of(found.success, "Job success rate", f"{figures}/job_success?{query}", "no job ended"),
        tile_of(
            found.durations, "Time to complete", f"{figures}/time_to_complete?{query}&by=class", "no job succeeded"
        ),
        tile_of(found.converging, "Runs that converge", f"{figures}/convergence?{query}", "no run with losses ended"),
        _charged(found, chosen),
    )
    return TileGroup(
        "Jobs and money", tiles, f"{_on_convergence(found)} Amounts are before credits: statements have these."
    )


def _on_convergence(found: Board) -> str:
    series = found.converging.now.series
    unclear = series[0].whole.sums.get("unclear") if series else None
    words = "A run converges if the median of its last losses is below that of its first."
    return words if unclear is None else f"{words} {unclear.num:,} with too few losses are left out."


def _charged(found: Board, chosen: Shown) -> Tile:
    now, before = found.now.spent, found.before.spent
    value, earlier = (None if one.charged is None else float(one.charged) for one in (now, before))
    unit, nothing = "money", "no rate cards are set"
    if now.rates is not None:
        unit = now.rates.currency
        nothing = "nothing that was used has a price" if now.lines else "no GPU was used"
    note = "GPU time of attempts at the prices of its hours, before credits."
    hours = found.now.time.sums
    link = "/console/costs" + (f"?{chosen.query()}" if hours.until - hours.since <= LONGEST else "")
    return Tile("Charged to tenants", unit, value, earlier, link, nothing=nothing, note=note, digits=now.decimals)


def _of_capacity(found: Board, chosen: Shown) -> TileGroup:
    now, before = (None if one is None else one.rollup for one in (found.health.now, found.health.before))
    link, nothing = f"/console/capacity?{chosen.query()}", "no GPU is recorded"
    score, score_before = (None if one is None else one.score_tenths / 10 for one in (now, before))
    tiles = [Tile("Health score", "of 100", score, score_before, link, "higher", nothing, digits=1)]
    for name, field, better in _CAPACITY:
        value, earlier = (None if one is None else float(getattr(one, field)) for one in (now, before))
        tiles.append(Tile(name, "GPUs", value, earlier, link, better, nothing, digits=0))
    return TileGroup("Health and capacity", tiles, "At the end of the time, next to its begin.")
