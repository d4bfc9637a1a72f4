"""GPUs, to read: one listing, and one GPU with all that is known of it by one statement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Final

import msgspec
from sqlalchemy import ColumnElement, func, literal_column, or_, select

from control.core.json_query import JsonQuery
from control.core.paging import Part, Sort, SortKey, moment_key, number_in
from control.core.records import record_of
from control.core.unit_of_work import UnitOfWork
from control.evidence.types import DecidedBurnInRecord, EvidenceRecord, StandingChangeRecord
from control.fleet.node_names import is_node
from control.fleet.place_conditions import ANY_HOLDER, ANYWHERE, HolderFilter, PlaceFilter
from control.fleet.types import CordonRecord, GpuRecord, OverrideRecord, ProposalRecord, RepairRecord
from control.incidents.read import OF_GPUS_SQL, IncidentRecord
from control.policy.read import PolicyRecord
from muster.db.models import AllocationGpu, Gpu
from muster.db.queries.effective_standing import effective_standing as effective_standing_of_row
from muster.db.queries.effective_standing import is_cordoned, override_in_force
from muster.db.stored_values import present_sql
from muster.domain.gpu.effective_standing import effective_standing
from muster.domain.ids import AttemptId, JobId, NodeId, TenantId
from muster.domain.principals import Permission
from muster.domain.states import AllocationState, Contact, Standing

LEFT_OUT: Final = ".."
"""Text between the beginning and the end of a UUID that a person shortens."""


class Place(msgspec.Struct, frozen=True):
    """The node that a GPU is in. ``repair_verbs``: the verbs that its agent last reported it may do."""

    id: NodeId
    name: str
    contact: Contact
    rack: str | None
    repair_verbs: list[str] = []


class StoredSignals(msgspec.Struct, frozen=True):
    """The newest report of the agent, and as JSON what is known of its signals' freshness."""

    received_at: datetime | None
    freshness: str | None


class Holder(msgspec.Struct, frozen=True):
    """The job that has the GPU. ``state`` is the allocation's: CLEANING when its programs have ended."""

    job_id: JobId
    job_name: str
    tenant_id: TenantId
    attempt_id: AttemptId
    attempt_number: int
    state: AllocationState


class GpuView(msgspec.Struct, frozen=True):
    """The rows about one GPU.

    ``evidence``: all that is remembered, the oldest first. ``shown``: the newest of any age. ``overrides``,
    ``cordons``: those in force. ``repairs`` of the board, ``moves`` and decided ``burn_ins``: the newest first, up to
    the requested limits. ``abandoned_at``: when a burn-in was last abandoned. ``is_burning_in``: a burn-in runs on it.
    ``is_reported``: a signal that would condemn it is not yet judged. ``signals``: None before the first report.
    ``proposals``: about it or its node, which the circuit breaker holds back. ``incidents``: the open ones about it,
    its node, or a breaker that holds it back.
    """

    gpu: GpuRecord
    node: Place
    policy: PolicyRecord | None
    evidence: list[EvidenceRecord]
    shown: list[EvidenceRecord]
    overrides: list[OverrideRecord]
    cordons: list[CordonRecord]
    holder: Holder | None
    repairs: list[RepairRecord]
    moves: list[StandingChangeRecord]
    burn_ins: list[DecidedBurnInRecord]
    abandoned_at: datetime | None
    is_burning_in: bool
    is_reported: bool
    signals: StoredSignals | None = None
    proposals: list[ProposalRecord] = []
    incidents: list[IncidentRecord] = []


GPU: Final = JsonQuery(
    f"""
    SELECT json_build_object(
        'gpu', to_json(g),
        'node', json_build_object(
            'id', n.id, 'name', n.name, 'contact', n.contact, 'rack', n.rack, 'repair_verbs', n.repair_verbs
        ),
        'policy', (SELECT to_json(r) FROM (
            SELECT p.version, p.document FROM policy_versions AS p WHERE p.is_active
        ) AS r),
        'evidence', COALESCE((
            SELECT json_agg(to_json(e) ORDER BY e.onset_at, e.id) FROM evidence AS e
            WHERE e.gpu_uuid = g.uuid AND e.last_seen_at > %(now)s - %(remembered)s
        ), '[]'),
        'shown', COALESCE((SELECT json_agg(to_json(r)) FROM (
            SELECT e.* FROM evidence AS e WHERE e.gpu_uuid = g.uuid ORDER BY e.id DESC LIMIT %(num_shown)s
        ) AS r), '[]'),
        'overrides', COALESCE((
            SELECT json_agg(to_json(o) ORDER BY o.created_at DESC) FROM gpu_overrides AS o
            WHERE o.gpu_uuid = g.uuid AND o.ended_at IS NULL AND o.until > %(now)s
        ), '[]'),
        'cordons', COALESCE((
            SELECT json_agg(to_json(c) ORDER BY c.created_at DESC, c.id) FROM cordons AS c
            WHERE (c.gpu_uuid = g.uuid OR c.node_id = g.node_id)
                AND c.released_at IS NULL AND (c.until IS NULL OR c.until > %(now)s)
                AND (c.starts_at IS NULL OR c.starts_at <= %(now)s)
        ), '[]'),
        'holder', (SELECT to_json(r) FROM (
            SELECT j.id AS job_id, j.name AS job_name, j.tenant_id, a.id AS attempt_id, a.number AS attempt_number,
                {present_sql("t.state", AllocationState)} AS state
            FROM allocation_gpus AS t
            JOIN allocations AS l ON l.id = t.allocation_id
            JOIN attempts AS a ON a.id = l.attempt_id
            JOIN jobs AS j ON j.id = l.job_id
            WHERE t.gpu_uuid = g.uuid AND t.state IN ('HELD', 'CLEANING')
        ) AS r),
        'repairs', COALESCE((SELECT json_agg(to_json(r)) FROM (
            SELECT p.*, p.words AS text FROM repairs AS p WHERE p.gpu_uuid = g.uuid OR p.serial = g.serial
            ORDER BY p.began_at DESC, p.id LIMIT %(num_repairs)s
        ) AS r), '[]'),
        'moves', COALESCE((SELECT json_agg(to_json(r)) FROM (
            SELECT m.* FROM gpu_standing_changes AS m WHERE m.gpu_uuid = g.uuid ORDER BY m.id DESC LIMIT %(num_moves)s
        ) AS r), '[]'),
        'burn_ins', COALESCE((SELECT json_agg(to_json(r)) FROM (
            SELECT b.began_at, b.ended_at, b.outcome, b.figures -> 'covers' AS covers FROM burn_ins AS b
            WHERE b.gpu_uuid = g.uuid AND b.outcome IN ('PASSED', 'FAILED')
            ORDER BY b.ordered_at DESC LIMIT %(num_burn_ins)s
        ) AS r), '[]'),
        'abandoned_at', (SELECT max(b.ended_at) FROM burn_ins AS b WHERE b.gpu_uuid = g.uuid AND b.state = 'ABANDONED'),
        'signals', (SELECT json_build_object('received_at', l.received_at, 'freshness', l.freshness::text)
            FROM node_latest AS l WHERE l.node_id = g.node_id),
        'is_reported', EXISTS (
            SELECT FROM gpu_signals AS s
            WHERE s.node_id = g.node_id AND s.judged_at IS NULL AND s.is_alarming
                AND (s.gpu_uuid = g.uuid OR s.gpu_uuid IS NULL)
        ),
        'proposals', COALESCE((
            SELECT json_agg(to_json(p) ORDER BY p.way) FROM breaker_proposals AS p
            WHERE p.subject_id = g.uuid OR p.subject_id = g.node_id
        ), '[]'),
        'incidents', {OF_GPUS_SQL % ("SELECT g.uuid UNION ALL SELECT g.node_id", "SELECT g.uuid", "g.node_id")},
        'is_burning_in', EXISTS (SELECT FROM burn_ins AS b WHERE b.gpu_uuid = g.uuid AND b.state = 'RUNNING')
    )
    FROM gpus AS g JOIN nodes AS n ON n.id = g.node_id WHERE g.uuid = %(uuid)s
    """,  # noqa: S608  # words of ours; what a caller sends is bound
    GpuView,
)
"""The GPU ``uuid``, at ``now``."""


class GpuOrder(StrEnum):
    """The order of a list of GPUs: by node and slot, the lowest score first, or the newest move of a standing first."""

    PLACE = "place"
    SCORE = "score"
    MOVED = "moved"


NOT_JUDGED: Final = 101
"""The score, in an order, of a GPU that has none yet: behind all others."""
_BY_PLACE: Final = Sort(
    (SortKey(Gpu.node_id, attrgetter("gpu.node_id")), SortKey(Gpu.slot_index, attrgetter("gpu.slot_index"), number_in))
)
_UUID: Final = SortKey(Gpu.uuid, attrgetter("gpu.uuid"))
GPU_SORTS: Final = MappingProxyType(
    {
        GpuOrder.PLACE: _BY_PLACE,
        GpuOrder.SCORE: Sort(
            (
                SortKey(
                    func.coalesce(Gpu.score, literal_column(str(NOT_JUDGED))),
                    lambda found: NOT_JUDGED if found.gpu.score is None else found.gpu.score,
                    number_in,
                ),
                _UUID,
            )
        ),
        GpuOrder.MOVED: Sort((moment_key(Gpu.standing_since, attrgetter("standing_since")), _UUID), is_descending=True),
    }
)


@dataclass(frozen=True, slots=True)
class GpuFilter:
    """Conditions on a GPU; None and empty set no condition.

    ``node``: the id or the name of its node. ``model``: a part of its name, in any case. ``below``: its stored score is
    under that. ``uuid``: its beginning, its end, or both with ``..`` between. ``standings``: effective ones.
    ``is_cordoned``: by a cordon of its own or of its node. ``place``: of its host. ``holder``: the job that has it.
    """

    standings: Sequence[Standing] = ()
    node: str | None = None
    model: str | None = None
    below: float | None = None
    uuid: str | None = None
    is_cordoned: bool | None = None
    place: PlaceFilter = ANYWHERE
    holder: HolderFilter = ANY_HOLDER


@dataclass(frozen=True, slots=True)
class ListedGpu:
    """One GPU. ``override``: the newest standing in force that a person has set.

    ``is_cordoned``: by a cordon of its own or of its node. ``standing_since``: when its own standing last moved.
    """

    gpu: GpuRecord
    override: Standing | None
    is_cordoned: bool
    standing_since: datetime | None = None

    @property
    def effective_standing(self) -> Standing:
        return effective_standing(self.gpu.standing, self.override)


def list_gpus(unit: UnitOfWork, wanted: GpuFilter, part: Part) -> Sequence[ListedGpu]:
    """Return GPUs by node and slot unless ``part`` says otherwise."""
    unit.principal.require(Permission.GPU_READ)
    columns = Gpu, override_in_force(unit.now), is_cordoned(unit.now)
    query = select(*columns).where(*_conditions(wanted, unit.now))
    found = unit.session.execute(part.of(query, _BY_PLACE))
    return [
        ListedGpu(record_of(gpu, GpuRecord), override, has_cordon, gpu.standing_since)
        for gpu, override, has_cordon in found
    ]


def _conditions(wanted: GpuFilter, now: datetime) -> Iterator[ColumnElement[bool]]:
    if wanted.standings:
        yield effective_standing_of_row(now).in_(wanted.standings)
    if wanted.is_cordoned is not None:
        yield is_cordoned(now) if wanted.is_cordoned else ~is_cordoned(now)
    if wanted.node is not None:
        yield is_node(Gpu.node_id, wanted.node)
    if wanted.model is not None:
        yield Gpu.model.icontains(wanted.model, autoescape=True)
    if wanted.below is not None:
        yield Gpu.score < wanted.below
    if wanted.uuid is not None:
        yield _is_named(wanted.uuid)
    yield from wanted.place.on(Gpu.node_id)
    yield from wanted.holder.conditions(AllocationGpu.gpu_uuid, Gpu.uuid)


def _is_named(text: str) -> ColumnElement[bool]:
    head, left_out, tail = text.partition(LEFT_OUT)
    begins = Gpu.uuid.startswith(head, autoescape=True)
    if left_out:
        return begins & Gpu.uuid.endswith(tail, autoescape=True)
    return or_(begins, Gpu.uuid.endswith(text, autoescape=True))
