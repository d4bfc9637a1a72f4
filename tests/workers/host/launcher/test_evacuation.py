"""The loop closed: a driver's event condemns a GPU, its job stops, and continues elsewhere from before it."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from control.health import interventions
from control.health.evacuation import evacuate_once
from control.health.interventions import DISMISS
from control.health.judge import judge_once
from control.policy.policies import ACTIVATE, store_policy
from health.standing.admission import AdmissionFacts, Refusal, refusal_of
from muster.db.models import Breaker, Checkpoint, Cordon, EvidenceRow, Gpu, GpuStandingChange, Incident
from muster.domain.ids import GpuUuid, JobId
from muster.domain.policy.document import DEFAULT_POLICY, DispatchPolicy, EvacuationPolicy, Policy
from muster.domain.principals import system_principal
from muster.domain.states import CheckpointStatus, Contact, JobState, Standing
from tests.fleet_factory import OPERATOR
from tests.host_case import HostCase
from tests.stored_signals import add_signal

JUDGE = system_principal("judge")
FIRST, SECOND = GpuUuid("GPU-alpha-0"), GpuUuid("GPU-alpha-1")
TRAINS = """
import json, os, signal, socket, sys, time
channel = socket.socket(socket.AF_UNIX); channel.connect(os.environ["MUSTER_TRAIN_SOCKET"])
def say(**message): channel.sendall(json.dumps(message).encode() + b"\\n")
say(type="hello", rank=0, world_size=1)
print("resume", os.environ["MUSTER_RESUME"], flush=True)
if json.loads(os.environ["MUSTER_RESUME"])["generation"] is None:
    def leave(*_):
        say(type="checkpoint", step=25, generation="step-00000025/gen-1", status="committed")
        sys.exit(0)
    signal.signal(signal.SIGTERM, leave)
    for step, ago_s in ((10, 3600), (20, 0)):
        say(type="checkpoint", step=step, generation=f"step-{step:08d}/gen-1", status="verified",
            at_unix_ms=int((time.time() - ago_s) * 1000))
    time.sleep(600)
"""


@pytest.fixture
def host(host: HostCase) -> HostCase:
    """Both GPUs truly HEALTHY, and no needless waiting."""
    quick = Policy(
        dispatch=DispatchPolicy(retry_backoff_s=0.1, retry_backoff_max_s=0.2),
        evacuation=EvacuationPolicy(grace_s=60.0, correctness_grace_s=60.0),
    )
    with host.fleet.units.begin(OPERATOR, ACTIVATE) as unit:
        store_policy(unit, quick, reason="no need to wait here")
        for standing in (Standing.PROBATION, Standing.HEALTHY):
            for gpu in unit.session.scalars(select(Gpu)):
                gpu.standing = standing
            unit.session.flush()
    return host


def signal(host: HostCase, code: int, gpu: GpuUuid = FIRST, *, source: str = "nvml", ago_s: float = 0.0) -> None:
    with host.fleet.units.begin(JUDGE, ACTIVATE, quiet=True) as unit:
        add_signal(unit, gpu, code=code, source=source, at=datetime.now(UTC) - timedelta(seconds=ago_s))


def standing(host: HostCase, gpu: GpuUuid = FIRST) -> Standing:
    with host.fleet.units.read() as session:
        return session.get_one(Gpu, gpu).standing


def evidence(host: HostCase) -> list[EvidenceRow]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(EvidenceRow).order_by(EvidenceRow.created_at)))


def test_a_condemning_event_quarantines_with_its_evidence(host: HostCase) -> None:
    signal(host, 95)
    assert judge_once(host.fleet.units, JUDGE) >= 1
    assert standing(host) is Standing.QUARANTINED
    assert standing(host, SECOND) is Standing.HEALTHY
    (found,) = evidence(host)
    assert (found.fault_key, found.sources, found.threatens_correctness) == ("xid:95", ["nvml"], True)
    with host.fleet.units.read() as session:
        newest = session.scalars(select(GpuStandingChange).order_by(GpuStandingChange.id.desc())).first()
        assert newest is not None
        assert (newest.origin, newest.target) == (Standing.HEALTHY, Standing.QUARANTINED)
        assert newest.evidence_ids == [found.id]
        assert session.get_one(Gpu, FIRST).origin_standing is Standing.HEALTHY
    assert judge_once(host.fleet.units, JUDGE) <= 1, "nothing is judged twice"
    assert len(evidence(host)) == 1


def test_one_fault_reported_by_two_sources_is_one_evidence(host: HostCase) -> None:
    signal(host, 95, source="nvml", ago_s=1)
    judge_once(host.fleet.units, JUDGE)
    signal(host, 95, source="kernel_log")
    judge_once(host.fleet.units, JUDGE)
    (found,) = evidence(host)
    assert found.sources == ["nvml", "kernel_log"]


def test_a_fault_of_the_program_moves_nothing(host: HostCase) -> None:
    signal(host, 13)
    judge_once(host.fleet.units, JUDGE)
    assert standing(host) is Standing.HEALTHY
    assert len(evidence(host)) == 1


def test_past_the_breaker_moves_are_proposed_and_one_incident_opens(host: HostCase) -> None:
    signal(host, 95, FIRST)
    judge_once(host.fleet.units, JUDGE)
    signal(host, 95, SECOND)
    judge_once(host.fleet.units, JUDGE)
    assert {standing(host), standing(host, SECOND)} == {Standing.QUARANTINED, Standing.HEALTHY}
    judge_once(host.fleet.units, JUDGE)
    with host.fleet.units.read() as session:
        (incident,) = session.scalars(select(Incident)).all()
        assert incident.kind == "breaker_open"
        assert session.get_one(Breaker, "quarantine").state["open_since_ms"]


def test_what_the_breaker_holds_back_takes_work_as_before(host: HostCase) -> None:
    signal(host, 95, FIRST)
    judge_once(host.fleet.units, JUDGE)
    signal(host, 79, SECOND)
    judge_once(host.fleet.units, JUDGE)
    assert standing(host, SECOND) is Standing.HEALTHY
    job_id = host.submit("pass")
    host.fleet.cycle()
    assert host.fleet.job(job_id).state is JobState.ACTIVE
    assert not holds(host)


def test_a_gpu_that_may_compute_wrong_takes_nothing_new_whatever_the_breaker_holds_back(host: HostCase) -> None:
    signal(host, 95, FIRST)
    judge_once(host.fleet.units, JUDGE)
    signal(host, 95, SECOND)
    judge_once(host.fleet.units, JUDGE)
    assert standing(host, SECOND) is Standing.HEALTHY
    job_id = host.submit("pass")
    host.fleet.cycle()
    assert host.fleet.job(job_id).state is JobState.QUEUED
    assert "1 cordoned" in host.fleet.job(job_id).state_reason
    judge_once(host.fleet.units, JUDGE)
    (hold,) = holds(host)
    assert (hold.gpu_uuid, hold.reason_code) == (SECOND, "correctness_at_risk")
    assert hold.reason.startswith("its move to QUARANTINED waits for the breaker: XID 95")
    with host.fleet.units.begin(OPERATOR, DISMISS) as unit:
        interventions.dismiss(unit, SECOND, evidence(host)[-1].id, reason="a loose cable")
    judge_once(host.fleet.units, JUDGE)
    assert not holds(host)
    host.fleet.cycle()
    assert host.fleet.job(job_id).state is JobState.ACTIVE


def test_results_that_may_be_wrong_do_not_wait_for_the_breaker(host: HostCase) -> None:
    job_id = host.submit(TRAINS, stop_grace_s=30)
    host.turn_until(lambda: len(checkpoints(host, job_id)) == 2)
    (held,) = host.fleet.attempts(job_id)[0].hosts[0].gpus
    other = SECOND if held == FIRST else FIRST
    signal(host, 95, other)
    judge_once(host.fleet.units, JUDGE)
    assert evacuate_once(host.fleet.units, JUDGE) == 0
    signal(host, 79, held)
    judge_once(host.fleet.units, JUDGE)
    assert evacuate_once(host.fleet.units, JUDGE) == 0, "a GPU that is off the bus computes nothing wrong"
    signal(host, 95, held)
    judge_once(host.fleet.units, JUDGE)
    assert standing(host, held) is Standing.HEALTHY
    assert evacuate_once(host.fleet.units, JUDGE) == 1
    assert evacuate_once(host.fleet.units, JUDGE) == 0, "once is enough"
    host.turn_until(lambda: host.fleet.attempts(job_id)[0].attempt.cause == "evacuated")
    old, *new = checkpoints(host, job_id)
    assert old.status is CheckpointStatus.VERIFIED
    assert {row.status for row in new} == {CheckpointStatus.TAINTED}


def holds(host: HostCase) -> list[Cordon]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Cordon).where(Cordon.released_at.is_(None))))


def test_the_job_leaves_and_goes_on_from_before_the_fault(host: HostCase) -> None:
    job_id = host.submit(TRAINS, stop_grace_s=30)
    host.turn_until(lambda: len(checkpoints(host, job_id)) == 2)
    held = host.fleet.attempts(job_id)[0].hosts[0].gpus
    signal(host, 95, held[0])
    judge_once(host.fleet.units, JUDGE)
    assert evacuate_once(host.fleet.units, JUDGE) == 1
    assert evacuate_once(host.fleet.units, JUDGE) == 0, "once is enough"

    def is_over() -> bool:
        host.fleet.reconcile()
        host.fleet.cycle()
        return host.fleet.job(job_id).finished_at is not None

    host.turn_until(is_over)
    assert host.fleet.job(job_id).state is JobState.SUCCEEDED
    first, second = host.fleet.attempts(job_id)
    assert (first.attempt.cause, second.attempt.cause) == ("evacuated", "succeeded")
    assert second.hosts[0].gpus != held
    old, *new = checkpoints(host, job_id)
    assert old.status is CheckpointStatus.VERIFIED
    assert [row.status for row in new] == [CheckpointStatus.TAINTED] * 2, "the last one came while it was stopping"
    assert all(row.reason for row in new)
    told = json.loads(host.log(job_id).decode().splitlines()[-1].split(" ", 1)[1])
    assert (told["generation"], told["refuse"]) == (old.generation, [new[1].generation, new[0].generation])
    assert host.fleet.job(job_id).restarts_used == 0


def checkpoints(host: HostCase, job_id: JobId) -> list[Checkpoint]:
    with host.fleet.units.read() as session:
        return list(session.scalars(select(Checkpoint).where(Checkpoint.job_id == job_id).order_by(Checkpoint.step)))


@pytest.mark.parametrize("out", [Standing.QUARANTINED, Standing.REPAIR, Standing.RETIRED])
def test_an_override_never_brings_back_what_was_taken_out(out: Standing) -> None:
    facts = AdmissionFacts(standing=out, contact=Contact.LIVE, override=Standing.HEALTHY)
    assert refusal_of(facts, DEFAULT_POLICY.tier("spot")) is Refusal.STANDING
