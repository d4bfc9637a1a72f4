"""The fleet as columns, a byte a GPU and fact, in topology order: the data from which a map is painted and updated.

At 100,000 GPUs a map is 0.7 MB before compression. Between two maps of one layout only the changed cells are sent.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.core.visibility import only_tenant_of
from muster.db.models import Allocation, AllocationGpu, Gpu, Node
from muster.db.pipeline.packed_arrays import TEXT_SEPARATOR
from muster.db.queries.assignments import IS_ASSIGNED
from muster.db.queries.fleet_map import gpu_rows, node_rows, reading_rows, tenant_rows
from muster.domain.errors import NotFoundError
from muster.domain.ids import GpuUuid, TenantId
from muster.domain.principals import Permission, Principal
from muster.domain.states import Contact, Standing

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

STANDINGS: Final = tuple(Standing)
CONTACTS: Final = tuple(Contact)
NONE: Final = 255
"""No score, no reading, or a tenant beyond the tenants that have a place of their own."""
MAX_TENANTS: Final = 250
IS_CORDONED: Final = 1
IS_LOST: Final = 2
COLUMNS: Final = ("standing", "score", "utilisation", "temperature", "tenant", "flags")
URGENT: Final = (0, 1, 4, 5)
"""Columns whose change matters at once; the others are readings, which always change a little."""
UTILISATION_STEP: Final = 10
TEMPERATURE_STEP: Final = 4
"""Width of the steps of readings, so that a cell changes only when a person could see it."""


@dataclass(frozen=True, slots=True)
class MapNode:
    """One node. ``first``: the index of its first GPU in the columns."""

    node_id: str
    name: str
    rack: str
    contact: int
    is_simulated: bool
    is_cordoned: bool
    first: int
    num_gpus: int


@dataclass(frozen=True, slots=True)
class FleetMap:
    """The map. ``cells``: one row a column of ``COLUMNS``, one column a GPU.

    ``tenants``: (id, name) by number, from 1 on.
    """

    nodes: Sequence[MapNode]
    tenants: Sequence[tuple[str, str]]
    cells: Bytes

    @property
    def num_gpus(self) -> int:
        return int(self.cells.shape[1])

    @property
    def layout(self) -> int:
        """A checksum that is equal for maps with the same cells at the same places for the same nodes and tenants."""
        text = repr([(n.node_id, n.name, n.rack, n.num_gpus) for n in self.nodes]) + repr(self.tenants)
        return zlib.crc32(text.encode())

    def count(self) -> dict[Standing, int]:
        """Return the GPUs by effective standing."""
        found = np.bincount(self.cells[0], minlength=len(STANDINGS))
        return {standing: int(found[number]) for number, standing in enumerate(STANDINGS)}

    def count_cordoned(self) -> int:
        """Return how many GPUs a cordon of their own or of their node keeps out of new placements."""
        is_cordoned = self.cells[5] & IS_CORDONED > 0
        for node in self.nodes:
            if node.is_cordoned:
                is_cordoned[node.first : node.first + node.num_gpus] = True
        return int(np.count_nonzero(is_cordoned))


def fleet_map(units: UnitOfWorkFactory, principal: Principal) -> FleetMap:
    """Return the whole fleet; for a tenant only the GPUs that its jobs hold, and no more of the nodes around them."""
    principal.require(Permission.JOB_READ)
    own, now = only_tenant_of(principal), units.clock()
    with units.read() as session:
        connection = session.connection()
        gpus, nodes = gpu_rows(connection, own, now), node_rows(connection, now)
        readings = reading_rows(connection, None if own is None else {row[1] for row in gpus})
        tenants = [(str(row[0]), str(row[1])) for row in tenant_rows(connection) if own in {None, row[0]}]
    return _map_of(gpus, readings, nodes, tenants)


def gpu_at(units: UnitOfWorkFactory, principal: Principal, node_name: str, place: int) -> GpuUuid:
    """Return the GPU in one cell of the principal's map: the ``place``-th that it sees of that node.

    Raises:
        NotFoundError: the map has no such cell.
    """
    principal.require(Permission.JOB_READ)
    query = select(Gpu.uuid).join(Node, Node.id == Gpu.node_id).where(Node.name == node_name)
    own = only_tenant_of(principal)
    if own is not None:
        held = (
            select(AllocationGpu.gpu_uuid)
            .join(Allocation, Allocation.id == AllocationGpu.allocation_id)
            .where(Allocation.tenant_id == own, IS_ASSIGNED)
        )
        query = query.where(Gpu.uuid.in_(held))
    with units.read() as session:
        found = session.scalar(query.order_by(Gpu.slot_index).offset(place).limit(1))
    if found is None:
        raise NotFoundError("there is no such GPU on this map")
    return found


def _map_of(
    gpus: Sequence[Any], readings: Sequence[Any], nodes: Sequence[Any], tenants: list[tuple[str, str]]
) -> FleetMap:
    numbers = {TenantId(tenant_id): number for number, (tenant_id, _) in enumerate(tenants, 1) if number <= MAX_TENANTS}
    standings = {standing.value: number for number, standing in enumerate(STANDINGS)}
    cells = np.empty((len(COLUMNS), len(gpus)), np.uint8)
    if gpus:
        uuids, node_ids, standing, score, tenant, is_cordoned = zip(*gpus, strict=True)
        utilisation, temperature, is_lost = _readings_of(uuids, readings)
        cells[0] = [standings[each] for each in standing]
        cells[1] = [NONE if each is None else each for each in score]
        cells[2] = _in_steps(utilisation, UTILISATION_STEP)
        cells[3] = _in_steps(temperature, TEMPERATURE_STEP)
        cells[4] = [0 if each is None else numbers.get(each, NONE) for each in tenant]
        cells[5] = IS_CORDONED * np.array(is_cordoned, np.uint8) + IS_LOST * is_lost
    else:
        node_ids = ()
    return FleetMap(_nodes_of(nodes, node_ids), tenants, cells)


def _readings_of(uuids: Sequence[str], readings: Sequence[Any]) -> tuple[Floats, Floats, Bytes]:
    """Return utilisation, temperature and whether it is lost, of each of these GPUs; NaN without a reading."""
    names, utilisation, temperature, lost = zip(*readings, strict=True) if readings else ((), (), (), ())
    known = TEXT_SEPARATOR.join(names).split(TEXT_SEPARATOR) if names else []
    places = dict(zip(known, range(len(known)), strict=True))
    at = np.array([places.get(uuid, len(known)) for uuid in uuids], np.intp)
    return (
        np.append(np.frombuffer(b"".join(utilisation), ">f8"), np.nan)[at],
        np.append(np.frombuffer(b"".join(temperature), ">f8"), np.nan)[at],
        np.append(np.frombuffer(b"".join(lost), np.uint8), np.uint8(0))[at],
    )


def _in_steps(values: Floats, step: int) -> Bytes:
    """Return the values rounded to steps and clipped to a byte; NaN is ``NONE``."""
    rounded = np.clip(np.round(values / step) * step, 0, NONE - 1)
    return np.where(np.isnan(rounded), NONE, rounded).astype(np.uint8)


def _nodes_of(rows: Sequence[Any], node_ids: Sequence[str]) -> list[MapNode]:
    """Return the nodes among ``rows`` that have a GPU here. ``node_ids``: each GPU's, in the same order of nodes."""
    counts: dict[str, int] = {}
    for node_id in node_ids:
        counts[node_id] = counts.get(node_id, 0) + 1
    contacts = {contact.value: number for number, contact in enumerate(CONTACTS)}
    found, first = [], 0
    for node_id, name, rack, contact, is_simulated, is_cordoned in rows:
        num_gpus = counts.get(node_id, 0)
        if num_gpus:
            found.append(MapNode(node_id, name, rack, contacts[contact], is_simulated, is_cordoned, first, num_gpus))
            first += num_gpus
    return found


def changed_cells(before: FleetMap, after: FleetMap, limit: int) -> npt.NDArray[np.intp]:
    """Return cells in which ``after`` differs from ``before``, of one layout: urgent ones first, at most ``limit``."""
    is_urgent = (before.cells[URGENT, :] != after.cells[URGENT, :]).any(axis=0)
    is_other = (before.cells != after.cells).any(axis=0) & ~is_urgent
    return np.concatenate([np.flatnonzero(is_urgent), np.flatnonzero(is_other)])[:limit]


def with_cells(before: FleetMap, after: FleetMap, changed: npt.NDArray[np.intp]) -> FleetMap:
    """Return ``before`` with these cells as in ``after``: the map of a viewer that has received them."""
    cells = before.cells.copy()
    cells[:, changed] = after.cells[:, changed]
    return FleetMap(after.nodes, after.tenants, cells)
