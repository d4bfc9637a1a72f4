"""Samples are judged as they are stored: in the flush's own transaction, under the node's row.

So a sample has effect once, in whichever API process, and whichever process dies at any time. It is judged against the
sample before it in the database. Most samples find nothing and cost a few comparisons. One that raises or closes a
finding leaves a row in the judge's inbox, and the judge does the rest.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec
import structlog
from sqlalchemy import Connection

from control.core.unit_of_work import UnitOfWorkFactory
from control.evidence.inbox import Reported, sample_row
from control.policy.policies import active_policy
from control.telemetry.boots import BootBook
from control.telemetry.freshness import NOT_KNOWN, FreshnessBook
from control.telemetry.node_readings import known_in
from control.telemetry.reports import FreshReport
from health.detectors.detector import NO_OWN_HEAT, OwnHeat, own_heat_in
from health.detectors.load import heat
from health.detectors.past import (
    UNKNOWN,
    Past,
    PastCheck,
    Watched,
    is_quiet,
    judged,
    past_check_of,
    relevant_readings,
    watched_in,
)
from health.detectors.registry import alarms, judge_signal
from muster.db.queries import telemetry as statements
from muster.db.queries.drift import REPORTED_WITHIN
from muster.db.queries.telemetry import LockedNode
from muster.domain.evidence.findings import Finding, GpuSample, GpuSignal
from muster.domain.ids import GpuUuid
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms
from muster.wire.telemetry import GpuReport

POLICY_HOLDS_S: Final = 5.0
LIMITS_HOLD_S: Final = 60.0
"""Time for which this process uses its cached model and own maxima of a GPU."""
LIKE_EVENTS_MAX: Final = 1_024
"""Number of kinds of events for which it is cached whether they alarm."""
NO_MEMORY: Final = "null"
_encode: Final = msgspec.json.Encoder().encode
_log = structlog.get_logger(__name__)


HeatLimits = tuple[str, OwnHeat]
"""The facts that determine a GPU's limits of heat: its model, and the maxima that it reports itself."""
UNKNOWN_LIMITS: Final[HeatLimits] = ("", NO_OWN_HEAT)
Quiet = tuple[Sequence[str], Sequence[tuple[float | None, ...]], PastCheck]
"""GPUs, the values of each, and the settings under which these gave no finding."""


@dataclass(slots=True)
class SeenNode:
    """A node as its newest current report left it. ``watched``: the counters of that report's GPUs."""

    boot_order: int
    seq: int
    watched: dict[str, Watched]
    pasts: dict[str, Past]
    """State of each GPU beyond its counters, or state that carries them over a poll that failed."""
    quiet: Quiet | None = None
    """The last report in full, where it gave no finding: an equal report gives none either."""


@dataclass(slots=True)
class Verdict:
    """Verdict of one group: rows for the inbox, and each node's state after it."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    nodes: dict[str, SeenNode] = field(default_factory=dict)
    freshness: FreshnessBook | None = None

    def freshness_of(self, node_id: str) -> str:
        """Return the freshness of the node's signals as JSON, for its row."""
        return NOT_KNOWN if self.freshness is None else self.freshness.json_of(node_id)

    def memory_of(self, node_id: str) -> str:
        """Return the node's memory as JSON, for its row."""
        seen = self.nodes.get(node_id)
        return NO_MEMORY if seen is None or not seen.pasts else _encode(seen.pasts).decode()


class SampleJudge:
    """Judge of samples in one process. Its cache saves reads, and is never used before the node's row agrees."""

    def __init__(self) -> None:
        self.num_failed = 0
        self._policy = DEFAULT_POLICY.health
        self._check = past_check_of(self._policy)
        self._policy_read_at: float | None = None
        self._seen: dict[str, SeenNode] = {}
        self._limits: dict[str, tuple[float, HeatLimits]] = {}
        self._alarming: dict[tuple[object, ...], bool] = {}

    def read_policy(self, units: UnitOfWorkFactory) -> None:
        """Read the policy outside of any transaction. Raises ``UnavailableError``."""
        if self._policy_read_at is not None and time.monotonic() - self._policy_read_at < POLICY_HOLDS_S:
            return
        with units.read() as session:
            policy = active_policy(session).health
        if policy != self._policy:
            self._policy, self._check = policy, past_check_of(policy)
            self._alarming.clear()
        self._policy_read_at = time.monotonic()

    def judge(
        self,
        connection: Connection,
        current: Sequence[FreshReport],
        nodes: Mapping[str, LockedNode],
        books: Mapping[str, BootBook],
        now: datetime,
    ) -> Verdict:
        """Judge ``current``: reports that move latest state, in the order in which each node sent them."""
        book = FreshnessBook(self._policy, now)
        verdict = Verdict(nodes=self._as_they_stand(connection, current, nodes), freshness=book)

        def limits_of(uuid: str) -> HeatLimits:
            read_at, limits = self._limits.get(uuid, (-math.inf, UNKNOWN_LIMITS))
            if time.monotonic() - read_at >= LIMITS_HOLD_S:
                state = statements.state_of(connection, uuid, now - REPORTED_WITHIN)
                limits = statements.model_of(connection, uuid), own_heat_in(state)
                self._limits[uuid] = time.monotonic(), limits
            return limits

        for fresh in current:
            node_id = fresh.incoming.node_id
            try:
                verdict.rows += _judge_report(verdict.nodes[node_id], fresh, self._policy, self._check, now, limits_of)
            except Exception:  # noqa: BLE001  # a failed judgement must never stop storage
                self._count_failure("sample_not_judged", fresh)
                verdict.nodes[node_id] = SeenNode(0, -1, _counters(fresh.gpus), {})
            try:
                verdict.rows += book.open(fresh, nodes[node_id])
                verdict.rows += book.take(fresh, nodes[node_id])
            except Exception:  # noqa: BLE001  # a failed judgement must never stop storage
                self._count_failure("freshness_not_judged", fresh)
        for name, seen in verdict.nodes.items():
            seen.boot_order, seen.seq = books[name].order, books[name].seq
        return verdict

    def _count_failure(self, event: str, fresh: FreshReport) -> None:
        self.num_failed += 1
        _log.exception(event, node_id=fresh.incoming.node_id, seq=fresh.incoming.report.seq)

    @property
    def agent_silence(self) -> timedelta:
        """Return the time without a report after which an agent counts as silent."""
        return timedelta(seconds=self._policy.detectors.freshness.agent_max_s)

    def is_alarming(self, signal: GpuSignal) -> bool:
        """Return whether an event's subject takes no new work from now on, even before the judge has read the event.

        In a storm thousands of events are alike except for GPU and time, which decide nothing here.
        """
        values = tuple(signal.values.items())
        alike = signal.kind, signal.source, signal.code, signal.text, signal.gpu_uuid is None, values
        known = self._alarming.get(alike)
        if known is not None:
            return known
        if len(self._alarming) >= LIKE_EVENTS_MAX:
            self._alarming.clear()
        try:
            is_alarming = alarms(judge_signal(signal, self._policy))
        except Exception:  # noqa: BLE001  # a failed judgement must never stop storage: the judge sets it aside
            self.num_failed += 1
            _log.exception("event_not_judged", node_id=signal.node_id, signal_id=signal.signal_id)
            return False
        self._alarming[alike] = is_alarming
        return is_alarming

    def keep(self, verdict: Verdict) -> None:
        """Keep the verdict once it is committed."""
        self._seen |= verdict.nodes

    def _as_they_stand(
        self, connection: Connection, current: Sequence[FreshReport], nodes: Mapping[str, LockedNode]
    ) -> dict[str, SeenNode]:
        """Return each node before this group: from the cache where it is still current, else from the database."""
        found: dict[str, SeenNode] = {}
        missing: set[str] = set()
        for fresh in current:
            node_id = fresh.incoming.node_id
            if node_id not in found:
                found[node_id] = self._remembered(nodes[node_id])
            known = found[node_id].watched
            if not known.keys() >= set(fresh.gpu_uuids):
                missing.add(node_id)
        if missing:
            for name, row in statements.readings_of(connection, missing).items():
                stored = {uuid: watched_in(each.values) for uuid, each in known_in(row).items()}
                found[name].watched = stored | found[name].watched
        return found

    def _remembered(self, node: LockedNode) -> SeenNode:
        seen = self._seen.get(node.node_id)
        if seen is not None and (seen.boot_order, seen.seq) == (node.boot_order, node.seq):
            return SeenNode(seen.boot_order, seen.seq, seen.watched, dict(seen.pasts), seen.quiet)
        return SeenNode(node.boot_order, node.seq, {}, _pasts_in(node))


def _pasts_in(node: LockedNode) -> dict[str, Past]:
    """Return the memory of GPUs that are still this node's. A memory that cannot be read is dropped, and logged."""
    if not node.judge_memory:  # true of nearly all nodes, and msgspec builds the decoder of such a type at each call
        return {}
    try:
        pasts = msgspec.convert(node.judge_memory, dict[str, Past])
    except msgspec.ValidationError as error:
        _log.error("judge_memory_unreadable", node_id=node.node_id, fault=str(error))
        return {}
    return {uuid: past for uuid, past in pasts.items() if uuid in node.gpu_uuids}


def _judge_report(
    seen: SeenNode,
    fresh: FreshReport,
    policy: HealthPolicy,
    check: PastCheck,
    now: datetime,
    limits_of: Callable[[str], HeatLimits],
) -> list[dict[str, Any]]:
    """Return rows for the inbox, and update ``seen``. ``limits_of``: called for a GPU that is hot."""
    rows: list[dict[str, Any]] = []
    read = [relevant_readings(gpu.values) for gpu in fresh.gpus]
    if _is_as_quiet(seen.quiet, fresh, read, check):
        return rows
    before, seen.watched = seen.watched, {}
    seen.quiet = fresh.gpu_uuids, read, check
    for gpu in fresh.gpus:
        uuid, watched = gpu.uuid, before.get(gpu.uuid, UNKNOWN)
        if uuid in seen.pasts or gpu.is_lost or not is_quiet(watched, gpu.values, check):
            seen.quiet = None
            past = seen.pasts.pop(uuid, None) or Past(watched)
            limits = limits_of(uuid) if heat.is_hot(gpu.values, check.heat) else UNKNOWN_LIMITS
            after, said = judged(past, fresh.incoming.node_id, _sample(gpu, fresh), policy, to_ms(now), *limits)
            rows += (_row(each, fresh, now) for each in said)
            watched = after.watched
            if not after.has_counters_alone or watched != watched_in(gpu.values):
                seen.pasts[uuid] = after
        seen.watched[uuid] = watched
    return rows


def _is_as_quiet(
    quiet: Quiet | None, fresh: FreshReport, reported: Sequence[tuple[float | None, ...]], check: PastCheck
) -> bool:
    if quiet is None or quiet[2] is not check or quiet[1] != reported or quiet[0] != fresh.gpu_uuids:
        return False
    limits = check.heat
    return True not in [gpu.is_lost or heat.is_hot(gpu.values, limits) for gpu in fresh.gpus]


def _sample(gpu: GpuReport, fresh: FreshReport) -> GpuSample:
    told_ms = fresh.incoming.placed_ms
    return GpuSample(GpuUuid(gpu.uuid), told_ms, tuple(gpu.values), gpu.is_lost, frozenset(gpu.from_dcgm))


def _row(reported: Reported, fresh: FreshReport, now: datetime) -> dict[str, Any]:
    """Return the finding's row. Its name identifies the report, so that a repeated report gives one row."""
    report = fresh.incoming.report
    what = reported.fault_key if isinstance(reported, Finding) else f"{reported.fault_key}/over"
    name = f"sample/{report.boot_id}/{report.seq:020d}/{reported.gpu_uuid}/{what}"
    return sample_row(reported, fresh.incoming.node_id, name, now)


def _counters(gpus: Sequence[GpuReport]) -> dict[str, Watched]:
    return {gpu.uuid: watched_in(gpu.values) for gpu in gpus}
