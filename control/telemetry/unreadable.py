"""Readings that are no numbers: left out as a report arrives, counted here, with one incident a node.

A broken sensor or agent sends them for days, so one incident is open at a time; a person closes it, and it opens again
as long as the host continues.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

import structlog
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWork, UnitOfWorkFactory, declare_action, retrying
from control.incidents import incidents
from control.telemetry.reports import IncomingReport, SetAside
from muster.db.models import Node
from muster.domain.evidence.incidents import IncidentKind
from muster.domain.ids import NodeId
from muster.domain.principals import Principal

REPORT: Final = declare_action("telemetry.unreadable")
KIND: Final = IncidentKind.UNREADABLE_READINGS
REPORT_EVERY_S: Final = 600.0
"""Time until one node is checked again."""
GPUS_NAMED: Final = 16
_log = structlog.get_logger(__name__)


class UnreadableReadings:
    """Unreadable readings in one process. Call ``report`` after the commit of the reports, in the flusher's thread."""

    def __init__(
        self, units: UnitOfWorkFactory, principal: Principal, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_samples = 0
        self.num_values = 0
        self._units = units
        self._principal = principal
        self._clock = clock
        self._reported_s: dict[NodeId, float] = {}

    def report(self, stored: Iterable[IncomingReport]) -> None:
        """Open incidents for reports that had unreadable readings. One that fails now is opened with a later report."""
        for one in stored:
            if one.set_aside is not None:
                self.num_samples += len(one.set_aside.gpu_uuids)
                self.num_values += one.set_aside.num_values
                self._report_of(one.node_id, one.set_aside)

    def _report_of(self, node_id: NodeId, found: SetAside) -> None:
        now_s = self._clock()
        if now_s - self._reported_s.get(node_id, -REPORT_EVERY_S) < REPORT_EVERY_S:
            return
        _log.warning(
            "readings_set_aside",
            node_id=node_id,
            gpu_uuids=list(found.gpu_uuids[:GPUS_NAMED]),
            num_samples=len(found.gpu_uuids),
            num_values=found.num_values,
        )
        try:
            retrying(lambda: self._open(node_id, found))
        except Exception:  # noqa: BLE001  # a failed report of an incident must never stop storage
            _log.exception("readings_set_aside_not_told", node_id=node_id)
            return
        still = {known: at_s for known, at_s in self._reported_s.items() if now_s - at_s < REPORT_EVERY_S}
        self._reported_s = {**still, node_id: now_s}

    def _open(self, node_id: NodeId, found: SetAside) -> None:
        with self._units.begin(self._principal, REPORT, quiet=True) as unit:
            name = _locked_name(unit, node_id)
            if name is None or incidents.open_about(unit, KIND, [node_id]):
                return
            payload = {
                "node_id": node_id,
                "gpu_uuids": list(found.gpu_uuids[:GPUS_NAMED]),
                "num_samples": len(found.gpu_uuids),
                "num_values": found.num_values,
                "to_do": "See what the host's agent sends: text, NaN or an infinity is no reading. Its events and "
                "other GPUs count; those GPUs are judged by events alone until it is fixed.",
            }
            what = ", ".join(found.gpu_uuids[:GPUS_NAMED]) or f"{found.num_values} values of events"
            summary = f"{name} sends readings that are no numbers, which are set aside: {what}"
            incidents.open_incident(unit, KIND, "node", node_id, summary, payload)


def _locked_name(unit: UnitOfWork, node_id: NodeId) -> str | None:
    """Return the node's name, locked: several processes may report one node at once, and one of them opens."""
    return unit.session.scalar(select(Node.name).where(Node.id == node_id).with_for_update(key_share=True))
