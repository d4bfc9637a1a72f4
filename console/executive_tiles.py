"""The tiles of the executive page, in groups."""

from collections.abc import Mapping
from typing import Final

from console.executive import Board
from console.measure_tiles import Tile, TileGroup, tile_of
from console.ranges import Shown
from console.words import plural
from ledger.figures.definitions import Better
from ledger.measures import LEDGER_FIGURES, Measure

_NO_HOURS: Final = "no hour is counted"
_NOTHING: Final[Mapping[str, str]] = {
    "ettr": "no job ran",
    "mtbf": "no outage by a fault",
    "mttr": "no outage has ended",
    "scattered": "no GPU was idle while a job waited",
    "fragmented_nodes": "no GPU was idle",
    "fragmented_racks": "no GPU was idle",
}
"""What it means that a figure of the ledger has no value though hours are counted."""
_ABBREVIATED: Final[Mapping[str, str]] = {"ettr": "ETTR", "mtbf": "MTBF", "mttr": "MTTR"}
_OUTAGES: Final = frozenset({"mtbf", "mttr"})
_CAPACITY: Final[tuple[tuple[str, str, Better], ...]] = (
    ("Delivered", "num_gpus", "higher"),
    ("Healthy", "num_healthy", "higher"),
    ("Reserved", "num_reserved", "neither"),
    ("In use", "num_in_use", "neither"),
)


def tile_groups(found: Board, chosen: Shown) -> list[TileGroup]:
    """Return the tiles of what was read. ``chosen``: the stretch that links lead on with."""
    return [_of_jobs(found, chosen), _of_time(found, chosen), _of_capacity(found, chosen)]


def _of_jobs(found: Board, chosen: Shown) -> TileGroup:
    figures, query = "/console/figures", chosen.query()
    tiles = (
        tile_of(found.success, "Job success rate", f"{figures}/job_success?{query}", "no job ended"),
        tile_of(
            found.durations, "Time to complete", f"{figures}/time_to_complete?{query}&by=class", "no job succeeded"
        ),
        tile_of(found.converging, "Runs that converge", f"{figures}/convergence?{query}", "no run with losses ended"),
        _charged(found),
    )
    return TileGroup(
        "Jobs and money", tiles, f"{_on_convergence(found)} Amounts are before credits: statements have these."
    )


def _on_convergence(found: Board) -> str:
    series = found.converging.now.series
    unclear = series[0].whole.sums.get("unclear") if series else None
    words = "A run converges if the median of its last losses is below that of its first."
    return words if unclear is None else f"{words} {unclear.num:,} with too few losses are left out."


def _charged(found: Board) -> Tile:
    now, before = found.now.spent, found.before.spent
    value, earlier = (None if one.charged is None else float(one.charged) for one in (now, before))
    unit, nothing = "money", "no rate cards are set"
    if now.rates is not None:
        unit = now.rates.currency
        nothing = "nothing that was used has a price" if now.lines else "no GPU was used"
    note = "GPU time of attempts at the prices of its hours, before credits."
    return Tile(
        "Charged to tenants", unit, value, earlier, "/console/costs", nothing=nothing, note=note, digits=now.decimals
    )


def _of_time(found: Board, chosen: Shown) -> TileGroup:
    time = found.now.time
    notes = []
    if time.num_sampled:
        notes.append(f"Scattered and fragmented: {plural(time.num_sampled, 'hour')}, spread evenly over the time.")
    if time.sums.num_open_hours:
        notes.append(f"{time.sums.num_open_hours:,} of {time.sums.num_hours:,} hours may still change.")
    return TileGroup("GPU time", [_of_measure(found, each, chosen) for each in LEDGER_FIGURES], " ".join(notes))


def _of_measure(found: Board, measure: Measure, chosen: Shown) -> Tile:
    time = found.now.time
    link = "/console/utilisation" + ("" if chosen.is_free else f"?range={chosen.range.value}")
    return Tile(
        _ABBREVIATED.get(measure.name, measure.name.replace("_", " ").capitalize()),
        "" if measure.unit == "share" else measure.unit,
        measure.of(time.window),
        measure.of(found.before.time.window),
        "/console/incidents" if measure.name in _OUTAGES else link,
        measure.better,
        _NOTHING.get(measure.name, _NO_HOURS) if time.sums.num_hours else _NO_HOURS,
        note=measure.formula,
    )


def _of_capacity(found: Board, chosen: Shown) -> TileGroup:
    now, before = (None if one is None else one.rollup for one in (found.health.now, found.health.before))
    link, nothing = f"/console/capacity?{chosen.query()}", "no GPU is recorded"
    score, score_before = (None if one is None else one.score_tenths / 10 for one in (now, before))
    tiles = [Tile("Health score", "of 100", score, score_before, link, "higher", nothing, digits=1)]
    for name, field, better in _CAPACITY:
        value, earlier = (None if one is None else float(getattr(one, field)) for one in (now, before))
        tiles.append(Tile(name, "GPUs", value, earlier, link, better, nothing, digits=0))
    return TileGroup("Health and capacity", tiles, "At the end of the time, next to its begin.")
