"""The room that is free to a family of requests, and the sentences about it that all of them share."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from health.cohort.cohorts import attributes_of
from health.standing.admission import Refusal
from muster.domain.residency import site_words
from scheduler.explain.clauses import moment
from scheduler.fleet.topology import FleetState, Ints
from scheduler.solve.node_filter import labelled
from scheduler.solve.solver import Request, most_nodes, most_unrounded

DIFFERENCES_SHOWN: Final = 2
_ALONGSIDE_WORK: Final = (
    "with every GPU idle it fits if it ends before hosts close for planned work, or starts once that is over"
)
_REFUSAL_PHRASES: Final[Mapping[Refusal, str]] = {
    Refusal.MIG_ENABLED: "in MIG mode",
    Refusal.NODE_CONTACT: "on hosts that are silent or lost",
    Refusal.CORDONED: "cordoned",
    Refusal.BURN_IN: "in burn-in just now",
    Refusal.REPORTED: "reported as broken, and about to be judged",
    Refusal.ASSIGNED: "held by other jobs or being cleaned",
    Refusal.RECLAIMABLE_ONLY: "in the first part of a probation, which is for reclaimable tiers",
    Refusal.STANDING: "without a standing that this tier admits",
}


@dataclass(frozen=True, slots=True)
class _Most:
    """The most hosts of the family in one place, and without rounding to slices."""

    nodes: int
    unrounded: int


@dataclass(frozen=True, slots=True)
class FreeRoom:
    """The room of one family (``Request.family``), which has no place for some number of its hosts.

    ``is_of_no_use``: why it never has any, else empty; ``refusals``: why other GPUs are not free, in brackets.
    ``with_all``: with every GPU idle that the tier admits, ``anytime``: without planned work either. ``residency``:
    where its tenant's jobs may run, else empty.
    """

    is_of_no_use: str
    too_large_for_a_host: str = ""
    refusals: str = ""
    num_gpus: int = 0
    num_free: int = 0
    with_all: _Most = _Most(0, 0)
    anytime: _Most = _Most(0, 0)
    now: _Most = _Most(0, 0)
    apart: str = ""
    residency: str = ""

    def free(self, request: Request) -> str:
        """Return how many GPUs are free to the request, of the family, and why the others are not."""
        if not self.num_free:
            return f"none of {self.num_gpus} GPUs is free to this tier{self.refusals}"
        is_too_few = self.num_free < min(request.fewest_nodes * request.gpus_per_node, self.num_gpus)
        only = "only " if is_too_few else ""
        return f"{only}{self.num_free} of {self.num_gpus} GPUs are free to this tier{self.refusals}"

    def binding(self, request: Request) -> str:
        """Return why there is no place although enough GPUs are free, or why there is none even with all of them free.

        ``request``: of the family, for its fewest hosts.
        """
        if self.with_all.nodes < request.nodes:
            if self.anytime.nodes >= request.nodes:
                return _ALONGSIDE_WORK
            told = largest_place(request, self.anytime.nodes, "that this tier admits", self.anytime.unrounded)
            return f"even with every GPU idle, {told}{self.apart}"
        if self.num_free < request.nodes * request.gpus_per_node:
            return ""
        return largest_place(request, self.now.nodes, "free", self.now.unrounded)


def free_room(state: FleetState, request: Request) -> FreeRoom:
    """Return the room of the request's family now."""
    state = state.for_tier(request.tier)
    num_gpus, layout = len(state.layout.uuids), state.layout
    if not num_gpus:
        return FreeRoom("no host is enrolled")
    for name in (request.required, *request.rule.levels):
        if name is not None and layout.level(name) is None:
            return FreeRoom(f"the fleet has no level named {name}")
    tier, num_free = state.tier(request.tier), int(state.tier(request.tier).counts.sum())
    with_all = anytime = _most(state, request, tier.admitted_counts)
    if request.maintenance_start_ms is not None:
        anytime = _most(state, replace(request, maintenance_start_ms=None), tier.admitted_counts)
    return FreeRoom(
        is_of_no_use="",
        too_large_for_a_host=_too_large_for_a_host(state, request),
        refusals=_reasons(state, request),
        num_gpus=num_gpus,
        num_free=num_free,
        with_all=with_all,
        anytime=anytime,
        now=_most(state, request, tier.counts),
        apart=_apart(state, tier.admitted_counts),
        residency=_residency(state, request),
    )


def _residency(state: FleetState, request: Request) -> str:
    """Return where its tenant's jobs may run, with the number of hosts there; empty: anywhere."""
    layout, labels = state.layout, request.rule.labels
    if labels.sites is None:
        return ""
    is_there = labelled(layout, labels.of_tenant)
    num_there = sum(bool(is_there[list(cells)].any()) for cells in layout.cells_of_node.values())
    hosts = f"{num_there} of {len(layout.cells_of_node)} hosts are there"
    return f"held by residency: its tenant's jobs may run at {site_words(labels.sites)} only, and {hosts}"


def _most(state: FleetState, request: Request, counts: Ints) -> _Most:
    most = most_nodes(state, request, counts)
    return _Most(most, most_unrounded(state, request, counts, most))


def _too_large_for_a_host(state: FleetState, request: Request) -> str:
    """Return the cause where no host has so many GPUs, whatever becomes free: all else is of no use to the reader."""
    most = state.layout.largest_host
    if most >= request.gpus_per_node:
        return ""
    return f"no host has {request.gpus_per_node} GPUs: the largest has {most}"


def _reasons(state: FleetState, request: Request) -> str:
    refused = sorted(state.refused(request.tier).items(), key=lambda item: -item[1])
    reasons = [f"{count} {_REFUSAL_PHRASES[refusal]}" for refusal, count in refused]
    labels, layout = request.rule.labels, state.layout
    if labels.sites is not None:
        num_outside = int(layout.cell_size[~labelled(layout, labels.of_tenant)].sum())
        reasons.append(f"{num_outside} on hosts outside its tenant's sites")
    if labels.of_job:
        num_gpus = int(layout.cell_size[~labelled(layout, labels.of_job)].sum())
        reasons.append(f"{num_gpus} on hosts whose labels leave them out")
    if request.avoid_nodes:
        reasons.append(f"{len(request.avoid_nodes)} hosts avoided after a fault there")
    num_spares = int(np.count_nonzero(state.is_spare & ~state.is_free))
    if num_spares and not request.may_use_spares:
        reasons.append(f"{num_spares} of the held GPUs are spares for gangs that lose hosts")
    if request.maintenance_start_ms is not None:
        closes = state.cell_closes_ms <= request.maintenance_start_ms
        num_closing = int(state.tier(request.tier).counts[closes].sum())
        if num_closing:
            first_ms = int(state.cell_closes_ms[closes].min())
            reasons.append(
                f"{num_closing} of the free GPUs on hosts that close for planned work before it would end, the first "
                f"at {moment(first_ms)}"
            )
    return f" ({', '.join(reasons)})" if reasons else ""


def _apart(state: FleetState, admitted: Ints) -> str:
    """Return in which attributes GPUs of other cohorts differ from those in the largest: the most GPUs first."""
    keys = state.layout.cohort_keys
    of_cohort = np.bincount(state.layout.cell_cohort, weights=admitted, minlength=len(keys))
    largest = attributes_of(keys[int(of_cohort.argmax())]) if keys else {}
    differing: Counter[str] = Counter()
    for key, count in zip(keys, of_cohort, strict=True):
        own = attributes_of(key)
        names = [name for name in largest if name in own and own[name] != largest[name]]
        if names and count:
            differing[" and ".join(names)] += int(count)
    most_first = sorted(differing.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{count} GPUs differ from it in {names}" for names, count in most_first[:DIFFERENCES_SHOWN]]
    return f" ({', '.join(told)})" if told else ""


def largest_place(request: Request, most: int, condition: str, unrounded: int) -> str:
    """Return the text about the largest place; ``unrounded``: the hosts that it would have without slices."""
    what = "cohort" if request.required is None else f"cohort in one {request.required}"
    gpus = f"{'1 GPU' if request.gpus_per_node == 1 else f'{request.gpus_per_node} GPUs'} {condition}"
    hosts = "no host" if not most else f"only {most} of {request.nodes} hosts"
    rounded = f", of {unrounded} before they are rounded down to whole slices" if unrounded > most else ""
    return f"the largest {what} has {hosts} with {gpus}{rounded}"
