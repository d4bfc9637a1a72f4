"""The judge's inbox: the findings and closings in stored signals, from an agent's event or from samples."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from control.evidence.rows import signal_of
from health.detectors.detector import Closing
from health.detectors.registry import alarms, closings_of, judge_signal
from muster.db.models import StoredSignal
from muster.domain.evidence.findings import Finding, Source
from muster.domain.evidence.old_keys import typed_finding, with_old_keys
from muster.domain.ids import NodeId
from muster.domain.policy.health import HealthPolicy

Reported = Finding | Closing
"""A fault, or the end of one."""

FINDING: Final = "finding"
CLOSING: Final = "closing"
_encode: Final = msgspec.json.Encoder().encode


def findings_of(rows: Sequence[StoredSignal], policy: HealthPolicy) -> list[Reported]:
    """Return the findings and closings of these signals, in the order in which they happened."""
    in_time = sorted(rows, key=lambda row: (row.at, row.signal_id))
    return [said for row in in_time for said in _findings_of(row, policy)]


def _findings_of(row: StoredSignal, policy: HealthPolicy) -> tuple[Reported, ...]:
    if row.kind == FINDING:
        return (typed_finding(msgspec.convert(row.values, Finding)),)
    if row.kind == CLOSING:
        return (msgspec.convert(row.values, Closing),)
    signal = signal_of(row)
    return (*judge_signal(signal, policy), *closings_of(signal, policy))


def sample_row(reported: Reported, node_id: NodeId, signal_id: str, received_at: object) -> dict[str, Any]:
    """Return a sample's finding or closing as a row for ``db.queries.telemetry.add_signals``."""
    is_finding = isinstance(reported, Finding)
    stored = replace(reported, values=with_old_keys(reported)) if isinstance(reported, Finding) else reported
    return {
        "node_id": node_id,
        "signal_id": signal_id,
        "gpu_uuid": reported.gpu_uuid,
        "kind": FINDING if is_finding else CLOSING,
        "source": reported.source.value if isinstance(reported, Finding) else Source.NVML.value,
        "code": None,
        "at_ms": reported.onset_ms if isinstance(reported, Finding) else reported.at_ms,
        "received_at": received_at,
        "text": reported.summary if isinstance(reported, Finding) else f"{reported.fault_key} is over",
        "values": _encode(stored).decode(),
        "is_open": False,
        "is_alarming": isinstance(reported, Finding) and alarms((reported,)),
    }
