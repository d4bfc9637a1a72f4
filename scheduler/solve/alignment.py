"""The alignment of a job's ranks with a place: which groups of its layout have one domain each, and the rails."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.domain.gpu.levels import NODE_LEVEL
from muster.domain.policy.placement import PlacementPolicy
from scheduler.fleet.rails import UNKNOWN
from scheduler.fleet.topology import NOWHERE, FleetState, Ints
from scheduler.model import Parts
from scheduler.solve.job_rules import PlaceRequest

Dimension = Literal["tp", "fsdp", "pp"]


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of one ``dimension`` that are wider than a host; a group of ``fsdp`` has ``fsdp`` × ``tp`` ranks.

    ``num_together``: how many of ``num_groups`` have their hosts in one domain of ``level``.
    """

    dimension: Dimension
    level: str
    num_groups: int
    num_together: int


@dataclass(frozen=True, slots=True)
class HostsOnRails:
    """The rails of hosts.

    ``rails``: of the first host's local ranks, in their order; ``num_hosts``: hosts whose local ranks are on the same.
    """

    rails: tuple[int, ...]
    num_hosts: int


@dataclass(frozen=True, slots=True)
class Alignment:
    """The alignment of one place. ``rails``: None if the gang has one host, or its first one has no declared rails."""

    groups: tuple[Groups, ...] = ()
    rails: HostsOnRails | None = None


def alignment_of(state: FleetState, tier: str, spec: PlaceRequest, policy: PlacementPolicy, parts: Parts) -> Alignment:
    """Return the alignment of ``parts``, which have the spec's shape, of GPUs of the fleet."""
    layout = state.for_tier(tier).layout
    cells = layout.cell_of_gpu[layout.gpu_indices(uuids[0] for _, uuids in parts)]

    def domains(name: str) -> Ints:
        level = layout.level(name)
        return np.full(len(cells), NOWHERE) if level is None else layout.groups[level][cells]

    groups = tuple(
        Groups(dimension, level, len(hosts), _num_together(domains(level)[hosts]))
        for dimension, level, hosts in _groups(spec, policy, len(parts))
    )
    return Alignment(groups, _on_rails(state, parts))


def _groups(spec: PlaceRequest, policy: PlacementPolicy, num_nodes: int) -> Iterator[tuple[Dimension, str, Ints]]:
    """Yield the groups that are wider than a host, with the hosts of each group's ranks: groups × ranks.

    If an NVLink domain is a host, no tensor-parallel group that spans hosts is in one.
    """
    layout, per_host = spec.layout, spec.shape.num_ranks_per_node
    if layout is None or layout.num_ranks != num_nodes * per_host:
        return
    hosts = (np.arange(layout.num_ranks) // per_host).reshape(layout.pp, layout.dp, layout.fsdp, layout.tp)
    if layout.tp > per_host:
        yield "tp", policy.nvlink_level or NODE_LEVEL, hosts.reshape(-1, layout.tp)
    if policy.leaf_level is not None and layout.fsdp > 1 and layout.fsdp * layout.tp > per_host:
        yield "fsdp", policy.leaf_level, hosts.reshape(-1, layout.fsdp * layout.tp)
    if policy.leaf_level is not None and layout.pp > 1 and num_nodes > 1:
        yield "pp", policy.leaf_level, hosts.reshape(layout.pp, -1).T


def _num_together(domains: Ints) -> int:
    """Return how many groups are in one known domain. ``domains``: of the ranks of each group."""
    is_together = (domains == domains[:, :1]).all(axis=1) & (domains[:, 0] != NOWHERE)
    return int(np.count_nonzero(is_together))


def _on_rails(state: FleetState, parts: Parts) -> HostsOnRails | None:
    if len(parts) < 2:  # of one host all are alike
        return None
    found = [_rails_of(state.rails.of_gpu[state.layout.gpu_indices(uuids)]) for _, uuids in parts]
    first = found[0]
    return None if UNKNOWN in first else HostsOnRails(first, found.count(first))


def _rails_of(numbers: Ints) -> tuple[int, ...]:
    rails: Sequence[int] = numbers.tolist()
    return tuple(rails)
