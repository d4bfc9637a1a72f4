"""The tiles of the on-call page: what failed, and how busy GPUs and the network are."""

from collections.abc import Sequence
from typing import Final

from console.figure_charts import Compared
from console.measure_tiles import Tile, TileGroup, tile_of
from console.ranges import Shown
from control.jobs.failures import Counts

SATURATION: Final = {
    "gpu_utilisation": "GPUs busy",
    "data_wait": "Waiting for data",
    "collective_share": "In collectives",
    "network_throughput": "Network",
}
"""Indicator → its name on the page."""
_SAVES: Final = "/console/figures/save_success"
_FAILURES: Final = (
    ("Failed jobs", "num_failed", "Jobs that ended as FAILED.", "/console/jobs?state=FAILED"),
    ("Restarts", "restarts", "Attempts after a job's first.", "/console/figures/requeue_rate"),
    ("Hosts lost", "node_losses", "How often a host was lost.", "/console/nodes"),
    ("Rejected checkpoints", "rejected_saves", "Commits that did not read back equal.", _SAVES),
    ("Failed saves", "failed_saves", "Saves that their program reported as failed.", _SAVES),
)


def tiles_of_counts(now: Counts, before: Counts, chosen: Shown) -> TileGroup:
    tiles = []
    for name, field, note, link in _FAILURES:
        value, earlier = getattr(now, field), getattr(before, field)
        if value is not None:
            address = f"{link}?{chosen.query()}" if link.startswith("/console/figures/") else link
            tiles.append(Tile(name, "", float(value), float(earlier), address, "lower", note=note, digits=0))
    ended = now.num_succeeded + now.num_failed
    verified = f"{now.verified_saves:,} checkpoints were verified"
    words = f"{now.num_failed:,} of {ended:,} jobs that succeeded or failed did fail; {verified}."
    return TileGroup("What failed", tiles, words)


def tiles_of_saturation(found: Sequence[Compared], chosen: Shown) -> TileGroup:
    tiles = []
    for each in found:
        name = each.figure.name
        link = f"/console/figures/{name}?{chosen.query()}"
        tiles.append(tile_of(each, SATURATION[name], link, "nothing was counted"))
    note = "By the hour, from its 15th minute on; samples of GPUs an hour after its end."
    return TileGroup("GPU and network saturation", tiles, note)
