"""The freshness of a host's signals, judged as its reports are stored: in the flush, under the node's row.

What is known of a host stands in that row as JSON, a few numbers a GPU. A report that raises or ends a fault leaves a
row in the judge's inbox. A node without reports gets none here: ``control.health.agent_silence`` checks the time.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec
import structlog
from msgspec import UNSET

from control.evidence.inbox import Reported, sample_row
from control.telemetry.reports import FreshReport
from health.detectors.gpu.freshness import (
    NOTHING_KNOWN,
    AgedReport,
    Answer,
    Freshness,
    GpuAnswer,
    GpuFreshness,
    agent_reports,
    forget,
    judge,
)
from muster.db.queries.telemetry import LockedNode
from muster.domain.evidence.findings import Finding
from muster.domain.gpu.signal_groups import HOST_WIDE, SignalGroup
from muster.domain.ids import GpuUuid
from muster.domain.policy.health import HealthPolicy
from muster.domain.times import to_ms
from muster.wire.telemetry import GpuReport

NOT_KNOWN: Final = "null"
_GROUP_OF: Final[Mapping[str, SignalGroup]] = {group.value: group for group in HOST_WIDE}
_log = structlog.get_logger(__name__)

_GpuNumbers = tuple[int | None, int | None, float | None, int | None, int, int]
"""The fields of ``GpuFreshness`` in their order."""


class _Stored(msgspec.Struct, frozen=True):
    """``Freshness`` as a node's row holds it."""

    gpus: dict[str, _GpuNumbers] = msgspec.field(default_factory=dict)
    groups: dict[str, int] = msgspec.field(default_factory=dict)
    stated: dict[str, int] = msgspec.field(default_factory=dict)


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Stored).decode


@dataclass(slots=True)
class FreshnessBook:
    """The freshness of the nodes of one group of reports: as they stand, then after each report."""

    policy: HealthPolicy
    now: datetime
    _known: dict[str, Freshness | None] = field(default_factory=dict)

    def open(self, fresh: FreshReport, node: LockedNode) -> list[dict[str, Any]]:
        """Read what is known before a node's first report, and return a row that ends the silence of its agent.

        The end has the server's time, as the silence has: by the agent's clock it could be before its beginning.
        """
        node_id = node.node_id
        if node_id in self._known:
            return []
        self._known[node_id] = stored_freshness(node.freshness, node_id)
        if not node.is_silence_stated:
            return []
        return list(self._rows([agent_reports(fresh.incoming.node_id, to_ms(self.now))], fresh))

    def take(self, fresh: FreshReport, node: LockedNode) -> list[dict[str, Any]]:
        """Judge a report of an open node, and return rows for the inbox. If it raises, the facts before it stand."""
        node_id = node.node_id
        reported: list[Reported] = []
        before, report = self._known[node_id], fresh.incoming.report
        after = before
        if report.ages_s is not UNSET:
            after, found = judge(before or NOTHING_KNOWN, _aged(fresh, node), self.policy, to_ms(self.now))
            reported += found
        elif report.node is not None and before is not None:
            after = None
            reported += forget(before, fresh.incoming.node_id, fresh.incoming.placed_ms)
        rows = list(self._rows(reported, fresh))
        self._known[node_id] = after
        return rows

    def json_of(self, node_id: str) -> str:
        known = self._known.get(node_id)
        return NOT_KNOWN if known is None else _encode(_stored(known)).decode()

    def _rows(self, reported: list[Reported], fresh: FreshReport) -> Iterator[dict[str, Any]]:
        report = fresh.incoming.report
        for each in reported:
            end = "" if isinstance(each, Finding) else "/over"
            name = f"sample/{report.boot_id}/{report.seq:020d}/{each.gpu_uuid}/{each.fault_key}{end}"
            yield sample_row(each, fresh.incoming.node_id, name, self.now)


def stored_freshness(content: str | None, node_id: str) -> Freshness | None:
    """Return what the row holds; None for an agent that states no ages. What cannot be read is dropped, and logged."""
    if content is None:
        return None
    try:
        stored = _decode(content)
    except msgspec.MsgspecError as error:
        _log.error("freshness_unreadable", node_id=node_id, fault=str(error))
        return None
    gpus = {GpuUuid(uuid): GpuFreshness(*numbers) for uuid, numbers in stored.gpus.items()}
    return Freshness(gpus, stored.groups, stored.stated)


def _stored(known: Freshness) -> _Stored:
    gpus = {
        str(uuid): (each.answered_ms, each.states_ms, each.latency_ms, each.late_since_ms, each.num_late, each.num_slow)
        for uuid, each in known.gpus.items()
    }
    return _Stored(gpus, dict(known.groups_ms), dict(known.stated_ms))


def _aged(fresh: FreshReport, node: LockedNode) -> AgedReport:
    report, set_aside = fresh.incoming.report, fresh.incoming.set_aside
    gpus = {GpuUuid(gpu.uuid): _answer_of(gpu) for gpu in fresh.gpus}
    if set_aside is not None:
        gpus |= {GpuUuid(uuid): GpuAnswer(Answer.UNREADABLE) for uuid in set_aside.gpu_uuids if uuid in node.gpu_uuids}
    ages_s = {} if report.ages_s is UNSET else report.ages_s
    return AgedReport(
        node_id=fresh.incoming.node_id,
        at_ms=fresh.incoming.placed_ms,
        ages_ms={group: _ms(ages_s[name]) for name, group in _GROUP_OF.items() if name in ages_s},
        gpus=gpus,
        own={GpuUuid(uuid) for uuid in node.gpu_uuids},
    )


def _answer_of(gpu: GpuReport) -> GpuAnswer:
    answer = Answer.LOST if gpu.is_lost else Answer.LATE if gpu.is_late else Answer.GIVEN
    age_s = gpu.ages_s.get(SignalGroup.STATES.value)
    return GpuAnswer(answer, None if age_s is None else _ms(age_s), gpu.latency_ms)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
