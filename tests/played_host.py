"""A host that sends what a test gives it, by direct calls of the host services."""

from dataclasses import dataclass

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import host_reports, protocol
from control.training import training
from muster.domain.ids import AttemptId, NodeId
from muster.domain.principals import Principal, Role
from muster.wire.host import (
    HOST_CAPABILITIES,
    PROTOCOL_VERSION,
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    HostAttempt,
    HostReport,
    PreflightReport,
    ReportAnswer,
    ReportBatch,
)
from muster.wire.training import TrainAnswer, TrainBatch, TrainLine
from tests.fleet_factory import enrol_host

_JOBS_CAPABILITIES = tuple(word for word in HOST_CAPABILITIES if word != "ready")


@dataclass
class PlayedHost:
    """A host that sends what the test gives it."""

    units: UnitOfWorkFactory
    node_id: NodeId
    boot_id: str = "boot-1"
    seq: int = 0

    @property
    def principal(self) -> Principal:
        return Principal(name=f"node:{self.node_id}", role=Role.NODE, node_id=self.node_id)

    def beat(
        self, *assigned: HostAttempt, capabilities: tuple[str, ...] = (), checks: tuple[PreflightReport, ...] = ()
    ) -> HeartbeatAnswer:
        """Send a heartbeat. It lists no capability of preflights unless the test sets it, and gets none."""
        self.seq += 1
        request = HeartbeatRequest(
            protocol=PROTOCOL_VERSION,
            boot_id=self.boot_id,
            seq=self.seq,
            attempts=assigned,
            capabilities=capabilities,
            preflights=checks,
        )
        with self.units.begin(self.principal, protocol.HEARTBEAT, quiet=True) as unit:
            return protocol.heartbeat(unit, request)

    def claim(
        self, attempt_id: str, fence: int, nonce: str = "n", capabilities: tuple[str, ...] = _JOBS_CAPABILITIES
    ) -> ClaimAnswer:
        """It starts as it is granted, unless its ``capabilities`` let it wait until it is ready."""
        request = ClaimRequest(
            protocol=PROTOCOL_VERSION, boot_id=self.boot_id, fence=fence, nonce=nonce, capabilities=capabilities
        )
        with self.units.begin(self.principal, protocol.CLAIM) as unit:
            return protocol.claim(unit, AttemptId(attempt_id), request)

    def report(self, attempt_id: str, fence: int, *kinds: str, record: dict[str, object] | None = None) -> int:
        return self.send_report(attempt_id, fence, *kinds, record=record).accepted

    def send_report(
        self, attempt_id: str, fence: int, *kinds: str, record: dict[str, object] | None = None
    ) -> ReportAnswer:
        """``record`` goes with reports of readiness, of a meeting and of an exit, and of a proof reported alone."""
        told = {"ready", "met", "exited"} if len(kinds) > 1 else {"ready", "met", "exited", "cleaned"}
        records = {kind: record or {} if kind in told else {} for kind in kinds}
        reports = tuple(
            HostReport(kind=kind, boot_id=self.boot_id, fence=fence, record=records[kind])  # type: ignore[arg-type]  # the test names one of the literals
            for kind in kinds
        )
        with self.units.begin(self.principal, host_reports.REPORT) as unit:
            return host_reports.report(
                unit, AttemptId(attempt_id), ReportBatch(protocol=PROTOCOL_VERSION, reports=reports)
            )

    def report_saved(self, attempt_id: str, fence: int, step: int, *, at_ms: int, offset: int = 0) -> int:
        """Report from byte ``offset`` of its file that rank 0 committed and verified a checkpoint; return the next."""
        generation = f"step-{step:08d}/gen-{fence}"
        said = {"type": "checkpoint", "step": step, "generation": generation, "status": "verified", "at_unix_ms": at_ms}
        answer = self.report_words(attempt_id, fence, said, at_ms=at_ms, offset=offset)
        assert answer.taken == 1
        return answer.offset

    def report_words(
        self, attempt_id: str, fence: int, *messages: dict[str, object], at_ms: int, offset: int = 0, rank: int = 0
    ) -> TrainAnswer:
        """Send a rank's messages, as lines from byte ``offset`` of its host's file on."""
        lines = tuple(TrainLine(at_ms=at_ms, rank=rank, message=message) for message in messages)
        batch = TrainBatch(protocol=PROTOCOL_VERSION, fence=fence, offset=offset, next_offset=offset + 100, lines=lines)
        with self.units.begin(self.principal, training.RECORD, quiet=True) as unit:
            return training.take(unit, AttemptId(attempt_id), batch)


def played_host(units: UnitOfWorkFactory, name: str) -> PlayedHost:
    host = PlayedHost(units, enrol_host(units, name), boot_id=f"boot-of-{name}")
    host.beat()
    return host
