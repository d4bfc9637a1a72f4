"""Ranks of one attempt with known faults, and its hosts by what their ranks show: the host to look at first."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import or_, select

from control.core.paging import Part
from control.core.unit_of_work import UnitOfWork
from control.jobs.gang_times import GangTimes
from control.jobs.rank_figures import AttemptShown
from control.watch.memory_lines import MemoryLines
from control.watch.read import VerdictFilter, list_verdicts
from muster.db.models import Allocation, AllocationGpu, AttemptHost, Gpu, GpuOverride, Node
from muster.db.queries.effective_standing import among, effective_standing, override_stands
from muster.domain.ids import JobId, NodeId
from muster.domain.job.verdicts import VerdictKind, VerdictState
from muster.domain.state_sets import OUT_OF_SERVICE
from muster.domain.states import Standing

MOST_FAULTY: Final = 4_096
"""So many ranks with a faulty GPU are read of an attempt, and short of memory, in the order of their numbers."""
VERDICTS_READ: Final = 100
_FAULTY: Final = (Standing.SUSPECT, *OUT_OF_SERVICE)


@dataclass(frozen=True, slots=True)
class RankFaults:
    """Known faults of one rank. ``standing``: of its GPU now, if it is suspect or out of service.

    ``verdicts``: kinds of standing verdicts that name the rank. ``is_short_of_memory``: by a line of its output.
    """

    standing: Standing | None = None
    verdicts: tuple[VerdictKind, ...] = ()
    is_short_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class GangFaults:
    """Known faults by rank. ``has_more``: a limit may have left out ranks or verdicts."""

    of_ranks: dict[int, RankFaults]
    has_more: bool


@dataclass(frozen=True, slots=True)
class HostRanks:
    """The ranks of one host. ``number``: its place in the gang. ``ratio``: the longest own compute, over the median.

    None: no rank of it reports a pace.
    """

    number: int
    node_id: NodeId | None
    name: str | None
    first: int
    last: int
    num_reported: int
    num_slow: int
    num_silent: int
    num_faulty: int
    ratio: float | None


@dataclass(frozen=True, slots=True)
class GangHosts:
    """The hosts of a gang whose ranks have reported: each array has a value of each. ``ratio``: NaN without a pace."""

    numbers: NDArray[np.int64]
    num_reported: NDArray[np.int64]
    num_slow: NDArray[np.int64]
    num_silent: NDArray[np.int64]
    num_faulty: NDArray[np.int64]
    ratio: NDArray[np.float64]

    @property
    def is_odd(self) -> NDArray[np.bool_]:
        """Whether a rank of the host is slow, silent or has a fault."""
        return (self.num_slow + self.num_silent + self.num_faulty) > 0

    def worst(self, unit: UnitOfWork, attempt: AttemptShown, most: int) -> Sequence[HostRanks]:
        """Return the hosts with the most odd ranks first, then the ones with the longest own compute."""
        odd = self.num_slow + self.num_silent + self.num_faulty
        order = np.lexsort((self.numbers, -np.nan_to_num(self.ratio), -odd))[:most].tolist()
        named = names_of_hosts(unit, attempt, self.numbers[order].tolist())
        return [self._row(place, attempt.ranks_per_node, named) for place in order]

    def _row(self, place: int, width: int, named: Mapping[int, tuple[NodeId, str]]) -> HostRanks:
        number, ratio = int(self.numbers[place]), float(self.ratio[place])
        node_id, name = named.get(number, (None, None))
        return HostRanks(
            number,
            node_id,
            name,
            number * width,
            (number + 1) * width - 1,
            int(self.num_reported[place]),
            int(self.num_slow[place]),
            int(self.num_silent[place]),
            int(self.num_faulty[place]),
            None if np.isnan(ratio) else ratio,
        )


def hosts_of(attempt: AttemptShown, times: GangTimes, faulty: Collection[int]) -> GangHosts:
    """Return the hosts of an attempt. ``faulty``: ranks with faults."""
    of_rank = times.ranks // attempt.ranks_per_node
    numbers, places = np.unique(of_rank, return_inverse=True)
    ratio = np.full(len(numbers), -np.inf)
    np.maximum.at(ratio, places, np.nan_to_num(times.ratio, nan=-np.inf))

    def count(which: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.bincount(places[which], minlength=len(numbers))

    return GangHosts(
        numbers,
        np.bincount(places, minlength=len(numbers)),
        count(times.is_slow),
        count(times.is_silent),
        count(times.among(faulty)),
        np.where(np.isinf(ratio), np.nan, ratio),
    )


def names_of_hosts(unit: UnitOfWork, attempt: AttemptShown, numbers: Collection[int]) -> dict[int, tuple[NodeId, str]]:
    """Return the id and name of hosts of an attempt by their places in the gang."""
    query = select(AttemptHost.node_rank, AttemptHost.node_id, Node.name).join(Node, Node.id == AttemptHost.node_id)
    found = unit.session.execute(
        query.where(AttemptHost.attempt_id == attempt.id, AttemptHost.node_rank.in_(set(numbers)))
    )
    return {number: (node_id, name) for number, node_id, name in found}


def faults_of(unit: UnitOfWork, job_id: JobId, attempt: AttemptShown, memory: MemoryLines | None) -> GangFaults:
    """Return the known faults of the ranks of an attempt. ``memory``: None: the caller may not read its lines."""
    standings, has_more = _standings(unit, attempt)
    found = {rank: RankFaults(standing) for rank, standing in standings.items()}
    verdicts = list_verdicts(unit, VerdictFilter(job_id=job_id, state=VerdictState.STANDING), Part(VERDICTS_READ))
    for verdict in verdicts:
        if verdict.attempt_id != attempt.id or verdict.ended_at is not None:
            continue
        for rank in verdict.ranks:
            known = found.get(rank, RankFaults())
            found[rank] = replace(known, verdicts=tuple(dict.fromkeys((*known.verdicts, verdict.kind))))
    for rank in () if memory is None else memory.ranks:
        found[rank] = replace(found.get(rank, RankFaults()), is_short_of_memory=True)
    has_more = has_more or len(verdicts) == VERDICTS_READ or (memory is not None and memory.has_more_ranks)
    return GangFaults(found, has_more)


def _standings(unit: UnitOfWork, attempt: AttemptShown) -> tuple[dict[int, Standing], bool]:
    """Return the standing of the GPU of each rank where it is suspect or out of service, and whether more may be."""
    if not attempt.gpus_per_node:
        return {}, False
    standing, overridden = effective_standing(unit.now), select(GpuOverride.gpu_uuid).where(*override_stands(unit.now))
    query = (
        select(AllocationGpu.node_rank, AllocationGpu.local_index, standing)
        .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
        .join(Gpu, Gpu.uuid == AllocationGpu.gpu_uuid)
        .where(Allocation.attempt_id == attempt.id, or_(Gpu.standing.in_(_FAULTY), among(overridden, Gpu.uuid)))
        .order_by(AllocationGpu.node_rank, AllocationGpu.local_index)
        .limit(MOST_FAULTY)
    )
    read = unit.session.execute(query).all()
    found: dict[int, Standing] = {
        number * attempt.gpus_per_node + local: value for number, local, value in read if value in _FAULTY
    }
    return found, len(read) == MOST_FAULTY
