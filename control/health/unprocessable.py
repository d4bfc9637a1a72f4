"""Items that cannot be judged are set aside: they wait with an incident, and the judge continues with the rest."""

from collections.abc import Collection
from datetime import timedelta
from typing import Final

from control.core.unit_of_work import UnitOfWork
from control.incidents import incidents
from muster.db.models import Gpu, StoredSignal
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import GpuUuid

AGAIN_AFTER: Final = timedelta(minutes=10)
"""Time until another try: the release that repairs the judge loses nothing."""
KIND: Final = IncidentKind.JUDGE_FAILED
_FAULT_LENGTH_MAX: Final = 500


def set_signal_aside(unit: UnitOfWork, signal: StoredSignal, error: Exception) -> None:
    signal.judge_after, signal.judge_fault = unit.now + AGAIN_AFTER, _words(error)
    about = f" about {signal.gpu_uuid}" if signal.gpu_uuid is not None else ""
    summary = f"signal {signal.signal_id} of {signal.node_id}{about} cannot be judged"
    _open(unit, "signal", signal.signal_id, summary, error)


def set_gpu_aside(unit: UnitOfWork, gpu: Gpu, error: Exception) -> None:
    gpu.judge_at = unit.now + AGAIN_AFTER
    _open(unit, "gpu", gpu.uuid, f"{gpu.uuid} cannot be judged: its standing stays {gpu.standing}", error)


def close_for(unit: UnitOfWork, signals: Collection[StoredSignal], gpus: Collection[GpuUuid]) -> None:
    """Close incidents about items that have been judged after all."""
    subjects = [*(signal.signal_id for signal in signals if signal.judge_fault is not None), *gpus]
    if not subjects:
        return
    for incident in incidents.open_about(unit, KIND, subjects):
        incidents.close_incident(unit, incident, reason="judged after all")


def _open(unit: UnitOfWork, subject_type: str, subject_id: str, summary: str, error: Exception) -> None:
    if not incidents.open_about(unit, KIND, [subject_id]):
        payload = {"fault": _words(error), "again_at": (unit.now + AGAIN_AFTER).isoformat()}
        incidents.open_incident(unit, KIND, subject_type, subject_id, summary, payload)


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\x00", "")[:_FAULT_LENGTH_MAX]
