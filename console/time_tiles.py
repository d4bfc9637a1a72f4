"""Tiles of the ledger's figures over the fleet's time: allocation to MTTR, each with its formula."""

from collections.abc import Mapping
from typing import Final

from console.measure_tiles import Tile, TileGroup
from console.words import plural
from control.ledger.fleet_time import FleetTime
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


def time_group(now: FleetTime, before: FleetTime, link: str) -> TileGroup:
    """Return the tiles next to those before. ``link``: where GPU time is shown by account."""
    notes = []
    if now.num_measured < now.sums.num_hours:
        notes.append(
            f"ETTR, scattered and fragmented: of {now.num_measured:,} of {plural(now.sums.num_hours, 'hour')}, "
            "since an earlier release did not measure them."
        )
    if now.sums.num_open_hours:
        notes.append(f"{now.sums.num_open_hours:,} of {now.sums.num_hours:,} hours may still change.")
    return TileGroup("GPU time", [_tile(now, before, each, link) for each in LEDGER_FIGURES], " ".join(notes))


def _tile(now: FleetTime, before: FleetTime, measure: Measure, link: str) -> Tile:
    return Tile(
        _ABBREVIATED.get(measure.name, measure.name.replace("_", " ").capitalize()),
        "" if measure.unit == "share" else measure.unit,
        measure.of(now.window),
        measure.of(before.window),
        "/console/incidents" if measure.name in _OUTAGES else link,
        measure.better,
        _NOTHING.get(measure.name, _NO_HOURS) if now.sums.num_hours else _NO_HOURS,
        note=measure.formula,
    )
