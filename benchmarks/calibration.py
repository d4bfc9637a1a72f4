"""Current speed of this machine, by a fixed piece of work, compared with the machine for which the bars are set.

Machines of one kind differ by a factor of 1.7, and one machine by as much from minute to minute. So CPU time is never
compared with a bar as it was measured. The same loop runs before, between and after the groups of figures of a suite,
and each figure is divided by the slowness of the loop next to it::

    slowness = CPU time of the loop ÷ REFERENCE_MS

That of the reference machine is 1; a machine that needs 1.7 times as long has 1.7.
The loop is a mix of what our own code does: small objects in dictionaries, sorting, texts and JSON, and numpy over the
arrays of a fleet. It calls nothing of Muster, so that a faster Muster does not make the machine look slow.
"""

import gc
import json
import statistics
import time
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

REFERENCE_MS: Final = 14.0
"""CPU time of one pass of the loop on the reference machine, which is the one that measured the scheduler's result of
commit 54fa8b09, when every bar of CPU time held. It was estimated on another: there the loop took 19.4 ms, and the
decisions, plans and reclaims of that result took 1.38 times as long as on the reference machine (median of 20 figures
without p95 and p99, from 1.28 to 1.70). A change of the loop needs a new estimate.
"""
PASSES: Final = 9
"""Passes of one sample, of which the middle one counts: about 0.3 s."""
_NUM_ITEMS: Final = 5_000
_NUM_TEXTS: Final = 1_600
_NUM_CELLS, _NUM_RACKS = 12_500, 782
_NUM_SCANS: Final = 180
_NUM_GPUS: Final = 100_000
_NUM_GATHERS: Final = 12


@dataclass(frozen=True, slots=True)
class _Item:
    number: int
    group: str
    weight: float


def sample_ms(passes: int = PASSES) -> float:
    """Return the CPU time of one pass now, in ms: the median of ``passes``."""
    gc.collect()
    taken_ms = []
    for _ in range(passes):
        started = time.process_time_ns()
        _objects()
        _texts()
        _arrays()
        _scattered()
        taken_ms.append((time.process_time_ns() - started) / 1e6)
    return statistics.median(taken_ms)


def slowness_of(*samples_ms: float) -> float:
    """Return how much longer than the reference machine this one takes, by the samples before and after a group of
    figures.
    """
    return statistics.fmean(samples_ms) / REFERENCE_MS


def _objects() -> float:
    """Small frozen objects are made, changed, grouped and sorted."""
    items = [_Item(number, f"rack-{number * 7919 % 97:04}", number * 31 % 211 / 7) for number in range(_NUM_ITEMS)]
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    changed = [replace(item, weight=item.weight + 1) for item in items[::16]]
    ordered = sorted(items, key=lambda item: (-item.weight, item.group, item.number))
    return sum(item.weight for item in ordered[::3]) + sum(len(group) for group in groups.values()) + len(changed)


def _texts() -> int:
    """Documents are written as JSON and read again."""
    rows = [{"id": f"job_{number:026}", "state": "ACTIVE", "gpus": list(range(8))} for number in range(_NUM_TEXTS)]
    read = json.loads(json.dumps(rows))
    return sum(len(row["id"]) for row in read)


def _arrays() -> int:
    """Cells of a fleet are compared, counted by rack and ordered, as a decision does."""
    free = np.arange(_NUM_CELLS, dtype=np.int64) * 7919 % 9
    racks = np.arange(_NUM_CELLS, dtype=np.int64) // 16
    found = 0
    for number in range(_NUM_SCANS):
        usable = free >= number % 8 + 1
        counts = np.bincount(racks[usable], minlength=_NUM_RACKS)
        best = int(counts.argmax())
        cells = np.flatnonzero(racks == best)
        found += int(cells[np.argsort(free[cells], kind="stable")][:4].sum()) + int(np.cumsum(counts)[-1])
    return found


def _scattered() -> int:
    """Values of all GPUs are read in another order than they lie in, which waits for memory."""
    order = np.arange(_NUM_GPUS, dtype=np.int64) * 7919 % _NUM_GPUS
    values = np.arange(_NUM_GPUS, dtype=np.int64)
    for _ in range(_NUM_GATHERS):
        values = values[order]
    return int(values[::97].sum())
