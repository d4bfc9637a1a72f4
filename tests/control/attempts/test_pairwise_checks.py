"""A gang's hosts meet in pairs before they start, over a real database: the orders of each, and what follows."""

import pytest
from sqlalchemy import select

from control.attempts.pairwise_checks import with_present_names
from control.core.unit_of_work import UnitOfWorkFactory
from control.health.judge import judge_once
from control.jobs.read import AttemptView
from muster.db.models import Event, EvidenceRow
from muster.domain.errors import ValidationFailedError
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.policy.start import PAIRWISE_LATE_S
from muster.domain.principals import system_principal
from muster.domain.states import AttemptState, Cause, JobState
from muster.wire.host import HOST_CAPABILITIES, AttemptPairwiseOrder, HostAttempt
from muster.wire.meeting import CALLED_OFF
from tests.control.conftest import SetClock
from tests.control.reclaim.stage import Stage, make_stage
from tests.played_host import PlayedHost

ROUND_S = 15.0
Reported = dict[str, object]
RELEASED: Reported = {"spawn_error": "it had to stop", "spawn_fault": "refused", "stop_reason": "preflight_failed"}


@pytest.fixture
def stage(units: UnitOfWorkFactory, clock: SetClock) -> Stage:
    """Five hosts of two GPUs each, one more than a gang of four takes."""
    stage = make_stage(units, clock, num_hosts=4)
    stage.add_host("epsilon")
    tiers = DEFAULT_POLICY.tiers
    reserved = tiers["reserved"].model_copy(update={"pairwise_check_s": ROUND_S})
    stage.set_policy(DEFAULT_POLICY.model_copy(update={"tiers": {**tiers, "reserved": reserved}}))
    return stage


class Gang:
    """Placed, claimed, and each of its hosts ready where a test reports it."""

    def __init__(self, stage: Stage, *, nodes: int = 4) -> None:
        self.stage = stage
        self.job_id = stage.submit("reserved", shape={"nodes": nodes, "gpus_per_node": 2})
        stage.cycle()
        nodes_in_order = [host.part.node_id for host in self.view().hosts]
        by_node = {host.node_id: host for host in stage.hosts}
        self.hosts = [by_node[node_id] for node_id in nodes_in_order]
        for host in self.hosts:
            (unclaimed,) = host.beat().unclaimed
            order = host.claim(unclaimed.attempt_id, unclaimed.fence, capabilities=HOST_CAPABILITIES).order
            assert order is not None
            assert order.preparation is not None
            self.has_pairwise_check = order.preparation.has_pairwise_check

    def view(self) -> AttemptView:
        return self.stage.fleet.attempts(self.job_id)[-1]

    @property
    def assigned(self) -> HostAttempt:
        attempt = self.view().attempt
        return HostAttempt(attempt_id=attempt.id, fence=attempt.fence, phase="claimed")

    def ready(self, host: PlayedHost, **where: object) -> tuple[AttemptPairwiseOrder, ...]:
        record = {"port": 4000 + self.hosts.index(host), "has_gpu": False, **where}
        return host.send_report(self.assigned.attempt_id, self.assigned.fence, "ready", record=record).pairwise_orders

    def all_ready(self) -> None:
        for host in self.hosts:
            self.ready(host)

    def order(self, host: PlayedHost) -> AttemptPairwiseOrder | None:
        found = host.beat(self.assigned).pairwise_orders
        return found[0] if found else None

    def report(self, host: PlayedHost, number: int, *, rate: float | None = 1e9, why: str = "") -> bool:
        """Return whether the answer lets the host start."""
        record: Reported = {"round": number, "rate_bytes_per_s": rate, "why": why, "port": 5000}
        return host.send_report(self.assigned.attempt_id, self.assigned.fence, "met", record=record).go

    def reason(self) -> str:
        return self.stage.job(self.job_id).state_reason

    def events(self, kind: str) -> list[Event]:
        with self.stage.units.read() as session:
            query = select(Event).where(Event.kind == kind, Event.subject_id == self.view().attempt.id)
            return list(session.scalars(query.order_by(Event.serial)))


def test_hosts_that_are_ready_meet_and_start_once_all_have(stage: Stage) -> None:
    gang = Gang(stage)
    assert gang.has_pairwise_check
    for host in gang.hosts[:-1]:
        assert gang.ready(host) == ()
    assert gang.order(gang.hosts[0]) is None, "not before all are ready"
    (last,) = gang.ready(gang.hosts[-1])
    assert gang.view().attempt.go_at is None
    assert gang.reason() == "its hosts are checked in pairs before the start: round 1 of at most 4"
    first, second, third, fourth = (gang.order(host) for host in gang.hosts)
    assert first is not None
    assert second is not None
    assert third is not None
    assert fourth == last
    assert first.order.hosts == second.order.hosts
    assert (first.order.rank, second.order.rank, first.order.port, third.order.port) == (0, 1, 4000, 4002)
    assert first.order.key != third.order.key
    assert (first.order.device, first.order.timeout_s, first.order.address) == ("cpu", ROUND_S, "127.0.0.1")
    assert [gang.report(host, 1) for host in gang.hosts] == [False, False, False, True]
    assert gang.order(gang.hosts[0]) is None
    assert gang.reason() == "its hosts were checked in pairs, 1 round: all may start"
    (passed,) = gang.events("attempt.pairwise_passed")
    assert passed.payload["rounds"][0][0]["rate_bytes_per_s"] == 1e9
    for host in gang.hosts:
        host.send_report(gang.assigned.attempt_id, gang.assigned.fence, "started")
    assert gang.view().attempt.state is AttemptState.RUNNING


def names_of(stage: Stage, gang: Gang) -> dict[str, PlayedHost]:
    names = {view.part.node_id: view.node_name for view in gang.view().hosts}
    return {names[host.node_id]: host for host in gang.hosts}


def play(gang: Gang, bad: PlayedHost) -> None:
    """Rounds in which every group fails that ``bad`` is in, until the check is over."""
    for number in range(1, 5):
        orders = {host.node_id: gang.order(host) for host in gang.hosts}
        named = names_of(gang.stage, gang)
        for host in gang.hosts:
            order = orders[host.node_id]
            if order is None:
                continue
            is_bad = bad in [named[name] for name in order.order.hosts]
            gang.report(host, number, rate=None if is_bad else 1e9, why="timed out" if is_bad else "")
        if gang.view().attempt.ending_cause is not None:
            return


def test_one_that_fails_is_named_releases_all_leaves_evidence_and_the_job_goes_elsewhere(stage: Stage) -> None:
    gang = Gang(stage)
    gang.all_ready()
    bad = gang.hosts[2]
    play(gang, bad)
    attempt = gang.view().attempt
    name = next(name for name, host in names_of(stage, gang).items() if host is bad)
    assert attempt.ending_cause is Cause.PREFLIGHT_FAILED
    assert name in str(attempt.ending_proof)
    assert [view.part.node_id for view in gang.view().hosts if view.part.is_at_fault] == [bad.node_id]
    judge_once(stage.units, system_principal("judge"))
    with stage.units.read() as session:
        evidence = session.scalars(select(EvidenceRow).where(EvidenceRow.node_id == bad.node_id)).one()
    assert (evidence.gpu_uuid, evidence.sources, evidence.severity) == (None, ["pairwise"], 2)
    for host in gang.hosts:
        assert [stop.reason for stop in host.beat(gang.assigned).stops] == [Cause.PREFLIGHT_FAILED]
        host.send_report(gang.assigned.attempt_id, gang.assigned.fence, "exited", "cleaned", record=RELEASED)
    assert stage.job(gang.job_id).state is JobState.RECOVERING
    assert stage.job(gang.job_id).restarts_used == 0
    stage.clock.advance(31)
    for host in stage.hosts:
        host.beat()
    stage.fleet.reconcile()
    stage.cycle()
    assert bad.node_id not in {view.part.node_id for view in gang.view().hosts}
    assert len(stage.fleet.attempts(gang.job_id)) == 2


def test_one_that_states_nothing_is_named_by_time_alone(stage: Stage) -> None:
    gang = Gang(stage)
    gang.all_ready()
    stage.fleet.reconcile()
    silent = gang.hosts[1]
    named = names_of(stage, gang)
    for number in range(1, 5):
        for host in gang.hosts:
            order = gang.order(host)
            if order is None or host is silent:
                continue
            is_beside = silent in [named[name] for name in order.order.hosts]
            gang.report(host, number, rate=None if is_beside else 1e9, why="timed out" if is_beside else "")
        for _ in range(3):
            stage.clock.advance((ROUND_S + PAIRWISE_LATE_S) / 3 + 0.1)
            for host in gang.hosts:
                host.beat(gang.assigned)
            stage.fleet.reconcile()
        if gang.view().attempt.ending_cause is not None:
            break
    assert gang.view().attempt.ending_cause is Cause.PREFLIGHT_FAILED
    assert [view.part.node_id for view in gang.view().hosts if view.part.is_at_fault] == [silent.node_id]
    assert "was silent in rounds 1, 2" in str(gang.view().attempt.ending_proof)


def test_a_group_of_which_one_has_failed_is_called_off_for_the_others(stage: Stage) -> None:
    gang = Gang(stage)
    gang.all_ready()
    gang.report(gang.hosts[0], 1, rate=None, why="its process ended by signal 9")
    assert gang.order(gang.hosts[1]) is None
    assert gang.order(gang.hosts[2]) is not None, "another group's"
    gang.report(gang.hosts[1], 1, rate=None, why=CALLED_OFF)
    gang.report(gang.hosts[2], 1)
    gang.report(gang.hosts[3], 1)
    assert gang.reason().endswith("round 2 of at most 4")
    assert "called off" not in gang.events("attempt.pairwise_round")[-1].payload["reason"]


def test_what_was_reported_outlives_a_control_plane_and_nothing_is_reported_twice(stage: Stage) -> None:
    """Each call is a transaction of its own already: what counts is that the rows are all that it continues with."""
    gang = Gang(stage)
    gang.all_ready()
    gang.report(gang.hosts[0], 1)
    gang.report(gang.hosts[0], 1, rate=None, why="reported again, otherwise")
    stage.clock.advance(3600)
    for host in gang.hosts:
        host.beat(gang.assigned)
    stage.fleet.reconcile()
    assert gang.order(gang.hosts[0]) is None, "it has answered"
    assert gang.order(gang.hosts[1]) is not None, "its time begins again with the control plane's own"
    for host in gang.hosts[1:]:
        gang.report(host, 1)
    assert gang.view().attempt.go_at is not None
    assert len(gang.events("attempt.host_met")) == 4


def test_an_older_host_takes_no_part_and_two_of_them_none_at_all(stage: Stage) -> None:
    gang = Gang(stage, nodes=2)
    host, older = gang.hosts
    gang.ready(host)
    assert older.send_report(gang.assigned.attempt_id, gang.assigned.fence, "ready", record={"looked_at": []}).go
    assert "fewer than two of its hosts support the check" in gang.reason()
    assert len(gang.events("attempt.pairwise_skipped")) == 1


def test_a_gang_that_is_cancelled_as_it_meets_meets_no_more(stage: Stage) -> None:
    gang = Gang(stage)
    gang.all_ready()
    stage.fleet.cancel(gang.job_id)
    assert gang.order(gang.hosts[0]) is None
    gang.report(gang.hosts[0], 1, rate=None, why="stopped")
    for host in gang.hosts:
        host.send_report(
            gang.assigned.attempt_id,
            gang.assigned.fence,
            "exited",
            "cleaned",
            record={**RELEASED, "stop_reason": "cancel"},
        )
    assert stage.job(gang.job_id).state is JobState.CANCELLED
    assert not any(view.part.is_at_fault for view in gang.view().hosts)


@pytest.mark.parametrize(
    ("kind", "record", "named"),
    [
        ("ready", {"port": 0, "has_gpu": False}, "port"),
        ("ready", {"port": 1, "has_gpu": "yes"}, "has_gpu"),
        ("met", {"round": 1, "port": 70_000}, "port"),
        ("met", {"round": 1, "port": 1, "rate_bytes_per_s": -1.0}, "rate_bytes_per_s"),
        ("met", {"round": 1, "port": 1, "why": "\x00"}, "U\\+0000"),
        ("met", {"port": 1}, "round"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(stage: Stage, kind: str, record: dict[str, object], named: str) -> None:
    gang = Gang(stage)
    if kind == "met":
        gang.all_ready()
    with pytest.raises(ValidationFailedError, match=named):
        gang.hosts[0].send_report(gang.assigned.attempt_id, gang.assigned.fence, kind, record=record)


def test_tiers_that_do_not_request_it_and_hosts_alone_meet_none(stage: Stage) -> None:
    stage.set_policy(DEFAULT_POLICY)
    gang = Gang(stage, nodes=2)
    assert not gang.has_pairwise_check
    gang.ready(gang.hosts[0])
    assert gang.hosts[1].send_report(gang.assigned.attempt_id, gang.assigned.fence, "ready").go


def test_a_check_that_the_release_before_stored_keeps_its_reports() -> None:
    stored = {"state": "meeting", "rounds": [[{"hosts": ["a", "b"], "port": 1, "said": {"a": {"met": True}}}]]}
    (((group,),),) = (with_present_names(stored)["rounds"],)
    assert group == {"hosts": ["a", "b"], "port": 1, "reports": {"a": {"met": True}}}
    assert with_present_names({"state": "awaited"}) == {"state": "awaited", "rounds": []}
