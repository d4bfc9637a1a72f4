"""A session on a migrated database, and factories for one row of each aggregate."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from muster.db.engine import make_engine
from muster.db.models import (
    Allocation,
    AllocationGpu,
    Attempt,
    AttemptHost,
    Base,
    BurnIn,
    Checkpoint,
    EvidenceRow,
    Gpu,
    Job,
    Node,
    PlacementPreflight,
    Reclaim,
    Tenant,
)
from muster.domain.evidence.findings import Severity, Trust
from muster.domain.ids import (
    AllocationId,
    AttemptId,
    CheckpointId,
    EvidenceId,
    Fence,
    GpuUuid,
    JobId,
    NodeId,
    ReclaimId,
    TenantId,
)
from muster.domain.job.preflight import PreflightState
from muster.domain.job.spec import NodeLossRule
from muster.domain.states import (
    AllocationState,
    AttemptState,
    BurnInState,
    CheckpointStatus,
    Contact,
    HostPartState,
    JobState,
    ReclaimState,
    Standing,
)

R = TypeVar("R", bound=Base)
NOW = datetime(2026, 11, 21, 4, 0, tzinfo=UTC)


@dataclass
class Rows:
    """Makes rows with their parents, and flushes each."""

    session: Session
    numbers: "count[int]" = field(default_factory=lambda: count(1))

    def tenant(self) -> Tenant:
        n = next(self.numbers)
        return self._add(Tenant(id=TenantId(f"ten_{n}"), name=f"tenant-{n}", created_at=NOW))

    def node(self) -> Node:
        n = next(self.numbers)
        return self._add(
            Node(
                id=NodeId(f"node_{n}"),
                name=f"node-{n}",
                contact=Contact.LIVE,
                address="127.0.0.1",
                num_gpus=8,
                created_at=NOW,
            )
        )

    def gpu(self) -> Gpu:
        n = next(self.numbers)
        return self._add(
            Gpu(
                uuid=GpuUuid(f"GPU-{n}"),
                node_id=self.node().id,
                slot_index=0,
                model="H100",
                memory_bytes=80 << 30,
                compute_capability="9.0",
                driver_version="580.1",
                standing=Standing.HEALTHY,
                cohort_key="h100",
            )
        )

    def burn_in(self) -> BurnIn:
        gpu = self.gpu()
        return self._add(
            BurnIn(
                id=f"bi_{next(self.numbers)}",
                gpu_uuid=gpu.uuid,
                node_id=gpu.node_id,
                state=BurnInState.ORDERED,
                reason="intake",
                ordered_by="system",
                ordered_at=NOW,
            )
        )

    def evidence(self) -> EvidenceRow:
        gpu = self.gpu()
        return self._add(
            EvidenceRow(
                id=EvidenceId(f"ev_{next(self.numbers)}"),
                gpu_uuid=gpu.uuid,
                node_id=gpu.node_id,
                detector="xid",
                detector_version=1,
                fault_key="xid:95",
                severity=int(Severity.CONDEMNING),
                trust=Trust.MEASURED,
                sources=["nvml"],
                onset_at=NOW,
                last_seen_at=NOW,
                counts_for_ms=1000,
                summary="XID 95",
                threatens_correctness=True,
                values={},
                created_at=NOW,
            )
        )

    def job(self) -> Job:
        return self._add(
            Job(
                id=JobId(f"job_{next(self.numbers)}"),
                tenant_id=self.tenant().id,
                name="train",
                tier="on_demand",
                state=JobState.QUEUED,
                spec={},
                submitted_by="alice",
                created_at=NOW,
                updated_at=NOW,
            )
        )

    def attempt(self, job: Job | None = None, *, number: int = 1) -> Attempt:
        job = job or self.job()
        n = next(self.numbers)
        return self._add(
            Attempt(
                id=AttemptId(f"att_{n}"),
                job_id=job.id,
                tenant_id=job.tenant_id,
                number=number,
                fence=Fence((1 << 32) + n),
                state=AttemptState.PLACED,
                placed_at=NOW,
                on_node_loss=NodeLossRule.WAIT,
                rendezvous_address="127.0.0.1",
                rendezvous_port=29500,
            )
        )

    def attempt_host(self) -> AttemptHost:
        return self._add(
            AttemptHost(
                attempt_id=self.attempt().id, node_id=self.node().id, node_rank=0, state=HostPartState.UNCLAIMED
            )
        )

    def allocation(self, attempt: Attempt | None = None) -> Allocation:
        attempt = attempt or self.attempt()
        return self._add(
            Allocation(
                id=AllocationId(f"alc_{next(self.numbers)}"),
                attempt_id=attempt.id,
                job_id=attempt.job_id,
                tenant_id=attempt.tenant_id,
                tier="on_demand",
                state=AllocationState.ASSIGNED,
                created_at=NOW,
            )
        )

    def allocation_gpu(self, gpu: Gpu | None = None) -> AllocationGpu:
        gpu = gpu or self.gpu()
        return self._add(
            AllocationGpu(
                allocation_id=self.allocation().id,
                gpu_uuid=gpu.uuid,
                node_id=gpu.node_id,
                node_rank=0,
                local_index=0,
                state=AllocationState.ASSIGNED,
            )
        )

    def preflight(self) -> PlacementPreflight:
        job = self.job()
        return self._add(
            PlacementPreflight(
                job_id=job.id,
                number=1,
                node_id=self.node().id,
                state=PreflightState.REQUESTED,
                tried=[],
                after_attempt=0,
                requested_at=NOW,
                deadline_at=NOW + timedelta(minutes=1),
            )
        )

    def checkpoint(self) -> Checkpoint:
        attempt = self.attempt()
        return self._add(
            Checkpoint(
                id=CheckpointId(f"ckpt_{next(self.numbers)}"),
                job_id=attempt.job_id,
                attempt_id=attempt.id,
                tenant_id=attempt.tenant_id,
                fence=attempt.fence,
                step=100,
                generation=f"step-00000100/gen-{attempt.fence}",
                status=CheckpointStatus.WRITING,
                manifest={},
                created_at=NOW,
            )
        )

    def reclaim(self) -> Reclaim:
        victim, beneficiary = self.attempt(), self.job()
        return self._add(
            Reclaim(
                id=ReclaimId(f"rcl_{next(self.numbers)}"),
                beneficiary_job_id=beneficiary.id,
                beneficiary_tenant_id=beneficiary.tenant_id,
                beneficiary_tier="reserved",
                victim_attempt_id=victim.id,
                victim_job_id=victim.job_id,
                victim_tenant_id=victim.tenant_id,
                victim_tier="spot",
                num_gpus=1,
                state=ReclaimState.NOTIFIED,
                reason="its place is taken back",
                notice_s=120.0,
                notified_at=NOW,
                deadline_at=NOW + timedelta(seconds=120),
                cost_gpu_s=120.0,
            )
        )

    def _add(self, row: R) -> R:
        self.session.add(row)
        self.session.flush()
        return row


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = make_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def rows(session: Session) -> Rows:
    return Rows(session)
