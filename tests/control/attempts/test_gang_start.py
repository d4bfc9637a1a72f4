"""A gang's start in two phases over a real database, with its hosts played: all are ready, or all are released."""

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.health.judge import judge_once
from control.jobs.read import AttemptView
from muster.db.models import Event, EvidenceRow, Gpu
from muster.domain.errors import ValidationFailedError
from muster.domain.ids import JobId, NodeId
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.principals import system_principal
from muster.domain.states import AttemptState, Cause, JobState, Standing
from muster.wire.host import HOST_CAPABILITIES, HeartbeatAnswer, HostAttempt, UnclaimedAttempt
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.played_host import PlayedHost

GANG = {"nodes": 2, "gpus_per_node": 2}
Reported = dict[str, object]
READY_WITHIN_S = DEFAULT_POLICY.dispatch.ready_within_s
NO_ROOM: Reported = {"spawn_error": "/state has 0.1 GiB free of the 1.0 GiB asked for", "spawn_fault": "preflight"}
RELEASED: Reported = {"spawn_error": "it had to stop", "spawn_fault": "refused", "stop_reason": "preflight_failed"}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Three hosts of two GPUs each, the last of which no gang takes at first."""
    return make_stage(units, clock, num_hosts=3)


class Start:
    """A gang of two, placed; its hosts know every word unless a test says otherwise."""

    def __init__(self, stage: Stage, **spec: object) -> None:
        self.stage = stage
        self.job_id: JobId = stage.submit("reserved", by=None, **{"shape": GANG, **spec})
        self.hosts: list[PlayedHost] = []
        self.place()

    def place(self) -> None:
        self.stage.cycle()
        self.hosts = [host for host in self.stage.hosts if host.node_id in self.nodes()]

    def view(self) -> AttemptView:
        return self.stage.fleet.attempts(self.job_id)[-1]

    def nodes(self) -> set[NodeId]:
        return {host.part.node_id for host in self.view().hosts}

    @property
    def assigned(self) -> HostAttempt:
        attempt = self.view().attempt
        return HostAttempt(attempt_id=attempt.id, fence=attempt.fence, phase="claimed")

    def claim(self, host: PlayedHost, capabilities: tuple[str, ...] = HOST_CAPABILITIES) -> bool:
        (unclaimed,) = host.beat().unclaimed
        assert isinstance(unclaimed, UnclaimedAttempt)
        answer = host.claim(unclaimed.attempt_id, unclaimed.fence, capabilities=capabilities)
        return answer.order is not None and answer.order.preparation is not None

    def report(self, host: PlayedHost, *kinds: str, record: dict[str, object] | None = None) -> bool:
        """Return whether the answer lets the host start."""
        return host.send_report(self.assigned.attempt_id, self.assigned.fence, *kinds, record=record).go

    def beat(self, host: PlayedHost) -> HeartbeatAnswer:
        return host.beat(self.assigned)

    def events(self) -> list[str]:
        with self.stage.units.read() as session:
            query = select(Event.kind).where(Event.subject_id == self.view().attempt.id).order_by(Event.serial)
            return list(session.scalars(query))


def test_no_host_is_ordered_to_start_before_all_are_ready(stage: Stage) -> None:
    start = Start(stage)
    first, second = start.hosts
    assert start.claim(first)
    assert start.claim(second)
    assert not start.report(first, "ready")
    assert start.beat(first).go == ()
    assert start.report(second, "ready"), "the last one need not ask"
    assert start.beat(first).go == (start.assigned.attempt_id,)
    assert start.view().attempt.go_at == stage.clock.now
    for host in start.hosts:
        start.report(host, "started")
    assert start.view().attempt.state is AttemptState.RUNNING
    assert start.beat(first).go == ()
    assert [kind for kind in start.events() if "ready" in kind] == [
        "attempt.host_ready", "attempt.all_ready", "attempt.host_ready",
    ]  # fmt: skip


def test_one_that_is_not_ready_releases_all_is_named_and_avoided(stage: Stage) -> None:
    start = Start(stage)
    first, second = start.hosts
    start.claim(first)
    start.claim(second)
    start.report(first, "ready")
    start.report(second, "exited", "cleaned", record=NO_ROOM)
    (stop,) = start.beat(first).stops
    assert stop.reason == Cause.PREFLIGHT_FAILED
    start.report(first, "exited", "cleaned", record=RELEASED)
    attempt = start.view().attempt
    assert attempt.cause is Cause.PREFLIGHT_FAILED
    assert attempt.proof is not None
    assert "the host was not ready: /state has 0.1 GiB free" in attempt.proof
    assert attempt.running_at is None
    assert stage.job(start.job_id).state is JobState.RECOVERING
    assert stage.fleet.num_taken_gpus() == 0
    again(start)
    assert second.node_id not in start.nodes()
    assert first.node_id in start.nodes(), "it did nothing wrong"


def again(start: Start) -> None:
    start.stage.clock.advance(31)
    for host in start.stage.hosts:
        host.beat()
    start.stage.fleet.reconcile()
    start.place()


def test_a_tenants_fault_is_the_tenants_wherever_it_shows(stage: Stage) -> None:
    start = Start(stage)
    for host in start.hosts:
        start.claim(host)
    missing: Reported = {"spawn_error": "the script /srv/train.py does not exist", "spawn_fault": "program"}
    start.report(start.hosts[1], "exited", "cleaned", record=missing)
    start.report(start.hosts[0], "exited", "cleaned", record=RELEASED)
    assert start.view().attempt.cause is Cause.USER_ERROR
    assert "/srv/train.py" in str(start.view().attempt.proof)
    assert not any(host.part.is_at_fault for host in start.view().hosts)


def test_a_dataset_that_one_host_lacks_and_another_has_is_the_hosts_fault(stage: Stage) -> None:
    start = Start(stage)
    first, second = start.hosts
    for host in start.hosts:
        start.claim(host)
    start.report(first, "ready")
    lacking: Reported = {"spawn_error": "/mnt/corpus is not there", "spawn_fault": "program", "lacks": "dataset"}
    start.report(second, "exited", "cleaned", record=lacking)
    start.report(first, "exited", "cleaned", record=RELEASED)
    assert start.view().attempt.cause is Cause.PREFLIGHT_FAILED
    assert "/mnt/corpus is not there, and other hosts have it" in str(start.view().attempt.proof)
    again(start)
    assert second.node_id not in start.nodes()


NO_SCRIPT: Reported = {
    "spawn_error": "the script /srv/train.py does not exist", "spawn_fault": "program", "lacks": "program"
}  # fmt: skip
NO_ENGINE: Reported = {
    "spawn_error": "docker: cannot connect", "spawn_fault": "preflight", "lacks": "container engine"
}  # fmt: skip


def lack(start: Start, record: Reported) -> None:
    """Its second host lacks something, and the first is not ready yet."""
    first, second = start.hosts
    for host in start.hosts:
        start.claim(host)
    start.report(second, "exited", "cleaned", record=record)
    start.report(first, "exited", "cleaned", record=RELEASED)


def test_a_script_that_no_host_is_known_to_have_holds_the_job_at_once(stage: Stage) -> None:
    start = Start(stage, restart={"max_restarts": 3})
    lack(start, NO_SCRIPT)
    job = stage.job(start.job_id)
    assert (job.state, job.restarts_used) == (JobState.HELD, 0)
    assert "the script /srv/train.py does not exist; held, because another attempt" in job.state_reason


def test_a_script_that_another_host_has_run_is_missing_by_the_hosts_fault(stage: Stage) -> None:
    start = Start(stage, restart={"max_restarts": 3})
    for host in start.hosts:
        start.claim(host)
        start.report(host, "ready")
    for host in start.hosts:
        start.report(host, "exited", "cleaned", record={"launcher_exit_code": 1, "ranks": {"0": {"exit_code": 1}}})
    assert start.view().attempt.cause is Cause.USER_ERROR
    again(start)
    lack(start, NO_SCRIPT)
    assert start.view().attempt.cause is Cause.PREFLIGHT_FAILED
    assert stage.job(start.job_id).state is JobState.RECOVERING


def test_a_host_without_its_engine_is_left_for_another_and_if_there_is_none_the_job_waits_for_a_person(
    stage: Stage,
) -> None:
    start = Start(stage)
    second = start.hosts[1]
    lack(start, NO_ENGINE)
    assert stage.job(start.job_id).state is JobState.RECOVERING, "the third host may have one"
    again(start)
    assert second.node_id not in start.nodes()
    lack(start, NO_ENGINE)
    job = stage.job(start.job_id)
    assert job.state is JobState.HELD, "a second in a row"
    assert "docker: cannot connect" in job.state_reason
    everywhere = Start(stage, shape={"nodes": 3, "gpus_per_node": 2})
    for host in everywhere.hosts:
        everywhere.claim(host)
    everywhere.report(everywhere.hosts[0], "exited", "cleaned", record=NO_ENGINE)
    for host in everywhere.hosts[1:]:
        everywhere.report(host, "exited", "cleaned", record=RELEASED)
    assert stage.job(everywhere.job_id).state is JobState.HELD, "no other host is in contact"


def test_what_states_nothing_in_time_is_waited_for_no_longer(stage: Stage) -> None:
    start = Start(stage)
    first, second = start.hosts
    start.claim(first)
    start.claim(second)
    start.report(first, "ready")
    for _ in range(10):
        stage.fleet.reconcile()
        assert start.view().attempt.ending_cause is None
        stage.clock.advance(READY_WITHIN_S / 10)
        start.beat(first)
        start.beat(second)
    stage.fleet.reconcile()
    assert start.view().attempt.ending_cause is Cause.PREFLIGHT_FAILED
    assert second.node_id in str(start.view().attempt.ending_proof)
    assert [stop.reason for host in start.hosts for stop in start.beat(host).stops] == [Cause.PREFLIGHT_FAILED] * 2


def test_an_older_host_starts_as_it_is_granted_and_a_newer_one_waits_for_that(stage: Stage) -> None:
    start = Start(stage)
    older, newer = start.hosts
    assert start.claim(newer)
    assert not start.report(newer, "ready")
    assert not start.claim(older, capabilities=())
    start.report(older, "started")
    assert start.beat(newer).go == (start.assigned.attempt_id,)
    start.report(newer, "started")
    assert start.view().attempt.state is AttemptState.RUNNING


def test_a_host_alone_starts_at_once(stage: Stage) -> None:
    job_id = stage.submit("reserved", shape={"gpus_per_node": 1})
    stage.cycle()
    (view,) = stage.fleet.attempts(job_id)
    (host,) = (host for host in stage.hosts if host.node_id == view.hosts[0].part.node_id)
    (unclaimed,) = host.beat().unclaimed
    order = host.claim(unclaimed.attempt_id, unclaimed.fence, capabilities=HOST_CAPABILITIES).order
    assert order is not None
    assert order.preparation is None


@pytest.mark.parametrize(
    ("word", "spec"),
    [
        ("venv", {"program": {"script": "/srv/train.py", "venv": "/srv/venv"}}),
        ("container", {"program": {"script": "/srv/train.py", "container": {"image": "docker.io/library/a:1"}}}),
        ("secrets", {"secrets": ["token"]}),
    ],
)
def test_what_a_host_does_not_know_is_not_left_out_but_placed_elsewhere(
    stage: Stage, word: str, spec: dict[str, object]
) -> None:
    start = Start(stage, **spec)
    older, newer = start.hosts
    assert not start.claim(older, capabilities=tuple(known for known in HOST_CAPABILITIES if known != word))
    attempt = start.view().attempt
    assert attempt.cause is Cause.PREFLIGHT_FAILED
    assert word in str(attempt.proof)
    again(start)
    assert older.node_id not in start.nodes()
    assert newer.node_id in start.nodes()


def test_a_job_that_no_host_gets_ready_is_on_hold(stage: Stage) -> None:
    start = Start(stage)
    for _ in range(DEFAULT_POLICY.dispatch.launch_failures_before_hold):
        for host in start.hosts:
            start.claim(host)
        start.report(start.hosts[0], "exited", "cleaned", record=NO_ROOM)
        start.report(start.hosts[1], "exited", "cleaned", record=RELEASED)
        stage.clock.advance(90)
        for host in stage.hosts:
            host.beat()
        stage.fleet.reconcile()
        start.place()
    assert stage.job(start.job_id).state is JobState.HELD
    assert "not ready" in stage.job(start.job_id).state_reason


def test_what_was_checked_stands_in_the_timeline(stage: Stage) -> None:
    start = Start(stage)
    start.claim(start.hosts[0])
    start.report(start.hosts[0], "ready", record={"looked_at": ["disk", "script"]})
    with stage.units.read() as session:
        event = session.scalars(select(Event).where(Event.kind == "attempt.host_ready")).one()
    assert event.payload["checked"] == ["disk", "script"]
    assert event.payload["node_id"] == start.hosts[0].node_id


def checked(stage: Stage) -> Start:
    tiers = DEFAULT_POLICY.tiers
    reserved = tiers["reserved"].model_copy(update={"quick_check_s": 5.0})
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"tiers": {**tiers, "reserved": reserved}}))
    return Start(stage, shape={"gpus_per_node": 1})


def wrong_on(gpu: str) -> dict[str, object]:
    said = {"gpu": gpu, "wrong": [["fp32 rows 1/8", 10, 11]]}
    return {"spawn_error": f"{gpu} computed wrong", "spawn_fault": "preflight", "quick_check": said}


def test_where_gpus_are_checked_a_host_alone_states_that_it_is_ready_too(stage: Stage) -> None:
    start = checked(stage)
    (host,) = start.hosts
    (unclaimed,) = host.beat().unclaimed
    order = host.claim(unclaimed.attempt_id, unclaimed.fence, capabilities=HOST_CAPABILITIES).order
    assert order is not None
    assert order.preparation is not None
    assert order.preparation.quick_check_s == 5.0
    assert start.report(host, "ready")


def test_a_gpu_that_computes_wrong_is_quarantined_by_evidence(stage: Stage) -> None:
    start = checked(stage)
    (host,) = start.hosts
    start.claim(host)
    gpu = start.view().hosts[0].gpus[0]
    start.report(host, "exited", "cleaned", record=wrong_on(gpu))
    assert start.view().attempt.cause is Cause.PREFLIGHT_FAILED
    judge_once(stage.units, system_principal("judge"))
    with stage.units.read() as session:
        row = session.get_one(Gpu, gpu)
        evidence = session.scalars(select(EvidenceRow).where(EvidenceRow.gpu_uuid == gpu)).one()
    assert row.standing is Standing.QUARANTINED
    assert evidence.sources == ["quick_check"]
    assert "11 instead of 10" in evidence.summary


def test_a_host_accuses_no_gpu_but_those_that_it_holds(stage: Stage) -> None:
    start = checked(stage)
    (host,) = start.hosts
    start.claim(host)
    with pytest.raises(ValidationFailedError, match="does not hold"):
        start.report(host, "exited", record=wrong_on("GPU-of-another"))
    with pytest.raises(ValidationFailedError, match="quick_check cannot be read"):
        start.report(host, "exited", record={**wrong_on("GPU-1"), "quick_check": {"gpu": 1}})
