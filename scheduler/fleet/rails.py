"""The rail of each GPU of a fleet, where an operator has declared it.

A *lane* is one GPU of a rail on a host: if two GPUs share a rail, it has two lanes. The free GPUs of a host are a set
of lanes, as the bits of a number, so that hosts with the same rails free have the same number.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Final

import numpy as np

from muster.domain.gpu.rails import RAILS_LABEL, rails_of_label
from scheduler.fleet.layout import Layout
from scheduler.fleet.tally import Flags, Ints
from scheduler.model import GpuView
from scheduler.solve.placement_rule import Labels

UNKNOWN: Final = -1
"""The rail of a GPU for which none is declared."""


@dataclass(frozen=True, slots=True)
class Rails:
    """The rails of a fleet's GPUs.

    ``of_gpu``: ``UNKNOWN`` where none is declared. ``first_lane``: of each rail; ``num_lanes``: 50 at most, 0 if no
    rail is declared. ``are_by_slot``: on each host a later slot is on no earlier rail.
    """

    of_gpu: Ints
    first_lane: Ints
    num_lanes: int
    are_shared: bool
    are_by_slot: bool

    def lanes(self, gpus: Ints, owners: Ints) -> Ints:
        """Return the lanes of ``gpus``, all on known rails; an owner's GPUs on a rail count from its first lane."""
        lanes: Ints = self.first_lane[self.of_gpu[gpus]]
        if self.are_shared:
            keys = owners * self.num_lanes + lanes
            order = keys.argsort(kind="stable")
            ordered = keys[order]
            lanes[order] += np.arange(len(order)) - ordered.searchsorted(ordered)
        return lanes


def undeclared_rails(num_gpus: int) -> Rails:
    """Return the rails of a fleet for which none is declared: no lane, and no GPU on a known rail."""
    of_gpu = np.full(num_gpus, UNKNOWN, dtype=np.int64)
    return Rails(of_gpu, np.zeros(0, dtype=np.int64), num_lanes=0, are_shared=False, are_by_slot=True)


class DeclaredRails:
    """The rails of a fleet whose policy declares ``rails`` by slot; a host's own label takes precedence."""

    def __init__(self, layout: Layout, ordered: Sequence[GpuView], rails: tuple[int, ...]) -> None:
        self._layout, self._ordered, self._rails = layout, ordered, rails

    @cached_property
    def found(self) -> Rails:
        """The rails, without a lane if none are declared."""
        label_sets = self._layout.label_sets
        if not self._rails and RAILS_LABEL not in map(itemgetter(0), chain.from_iterable(label_sets)):
            return undeclared_rails(len(self._ordered))
        declared = [_rails_of(labels, self._rails) for labels in label_sets]
        width = max(map(len, declared), default=0)
        if not width:
            return undeclared_rails(len(self._ordered))
        table = np.array([(*own, *[UNKNOWN] * (width + 1 - len(own))) for own in declared], dtype=np.int64)
        slots = np.array([min(gpu.slot_index, width) for gpu in self._ordered], dtype=np.int64)
        shares = list(_most_sharing(declared))
        return Rails(
            of_gpu=table[self._layout.cell_label_set[self._layout.cell_of_gpu], slots],
            first_lane=np.array([0, *accumulate(shares)][:-1], dtype=np.int64),
            num_lanes=sum(shares),
            are_shared=max(shares) > 1,
            are_by_slot=all(list(own) == sorted(own) for own in declared),
        )


def _rails_of(labels: Labels, by_default: tuple[int, ...]) -> tuple[int, ...]:
    """Return the host's rails; an invalid label leaves them unknown.

    The service that sets labels refuses such a label.
    """
    said = dict(labels).get(RAILS_LABEL)
    if said is None:
        return by_default
    try:
        return rails_of_label(said)
    except ValueError:
        return ()


def _most_sharing(declared: Sequence[tuple[int, ...]]) -> Iterator[int]:
    """Yield for each rail how many GPUs a host has on it at most."""
    distinct = set(declared)
    for rail in range(max(map(len, distinct))):
        most = max(own.count(rail) for own in distinct)
        if not most:
            return
        yield most


def lane_sets(rails: Rails, gpus: Ints, owners: Ints, num_owners: int) -> Ints:
    """Return the lanes of ``gpus`` that each owner has, as bits. ``owners``: of each of ``gpus``, from 0."""
    is_known: Flags = rails.of_gpu[gpus] != UNKNOWN
    gpus, owners = gpus[is_known], owners[is_known]
    bits = np.left_shift(1, rails.lanes(gpus, owners))
    # Below 2 ** 53 a sum of distinct powers of two is exact in float64.
    return np.bincount(owners, bits, minlength=num_owners).astype(np.int64)
