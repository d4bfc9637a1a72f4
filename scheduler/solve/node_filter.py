"""Nodes that a request may not use, whatever is free: by labels, planned work and unknown places.

Many requests exclude the same nodes, so each distinct filter is counted once (``FleetState.tally``).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from muster.domain.residency import SITE_LABEL
from scheduler.fleet.topology import NO_NODE_FILTER, NOWHERE, Flags, FleetState, Ints, Layout, NodeFilter
from scheduler.solve.placement_rule import LabelRule
from scheduler.solve.request import Request


class Filtered(NamedTuple):
    """A node filter.

    ``maintenance_start_ms``: hosts that close then or before are excluded; ``levels``: so are hosts of unknown place
    there.
    """

    labels: LabelRule
    maintenance_start_ms: int | None
    levels: tuple[int, ...]

    def excluded(self, state: FleetState) -> Ints:
        layout = state.layout
        shut = ~labelled(layout, self.labels) if self.labels else np.zeros(layout.num_cells, dtype=np.bool_)
        if self.maintenance_start_ms is not None:
            shut |= state.cell_closes_ms <= self.maintenance_start_ms
        for level in self.levels:
            shut |= layout.groups[level] == NOWHERE
        return np.flatnonzero(shut)


def node_filter_of(state: FleetState, request: Request) -> NodeFilter:
    """Return the filter of the request; ``NO_NODE_FILTER`` if it may be anywhere in this fleet."""
    layout = state.layout
    levels = _unknown_levels(layout, request) if layout.has_unknown else ()
    closings_ms, closing_ms = state.closings_ms, request.maintenance_start_ms
    if closing_ms is not None and (not closings_ms or closings_ms[0] > closing_ms):
        closing_ms = None
    if closing_ms is None and not levels and not request.rule.labels:
        return NO_NODE_FILTER
    return Filtered(request.rule.labels, closing_ms, levels)


def _unknown_levels(layout: Layout, request: Request) -> tuple[int, ...]:
    """Return the levels at which its hosts' places have to be known, and some of the fleet are not."""
    found = (level for name in known_levels(request) if (level := layout.level(name)))
    return tuple(level for level in found if len(layout.unknown_cells[level]))


def known_levels(request: Request) -> Sequence[str]:
    """Return the levels at which the place of its hosts has to be known."""
    return request.rule.levels if request.required is None else (request.required, *request.rule.levels)


def has_labels(layout: Layout, request: Request) -> Flags:
    """Return the cells on whose nodes the request may be by their labels."""
    return labelled(layout, request.rule.labels)


def labelled(layout: Layout, rule: LabelRule) -> Flags:
    """Return the cells on whose nodes a gang may be by this rule."""
    if rule not in layout.admitted_by:
        layout.admitted_by[rule] = _admitted(layout, rule)
    return layout.admitted_by[rule]


def _admitted(layout: Layout, rule: LabelRule) -> Flags:
    """Return the same as ``LabelRule.admits`` of each cell's labels, by the cells of each value that the rule names."""
    is_admitted = np.ones(len(layout.label_sets), dtype=np.bool_)
    residency = () if rule.sites is None else ((SITE_LABEL, rule.sites),)
    for name, wanted in (*rule.required, *residency):
        has_value = np.zeros_like(is_admitted)
        has_value[_sets_with(layout, name, wanted)] = True
        is_admitted &= has_value
    for name, barred in rule.forbidden:
        is_admitted[_sets_with(layout, name, barred)] = False
    return is_admitted[layout.cell_label_set]


def _sets_with(layout: Layout, name: str, values: Iterable[str]) -> list[int]:
    """Return the label sets, by number, in which the label has one of these values."""
    if not layout.sets_by_label:
        for number, labels in enumerate(layout.label_sets):
            for label in dict(labels).items():
                layout.sets_by_label.setdefault(label, []).append(number)
    return [number for value in values for number in layout.sets_by_label.get((name, value), ())]
