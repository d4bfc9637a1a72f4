"""Swaps of a slow rank's host: when they are due, when they do not pay, and how the job continues."""

from collections.abc import Sequence

import pytest
from sqlalchemy import select

from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts import node_labels
from control.watch import swaps, verdicts
from control.watch.types import VerdictRecord
from muster.db.models import Node
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction
from muster.domain.states import AttemptState, Cause, StopReason
from muster.failpoints import arming
from tests.control.conftest import SetClock
from tests.control.watch.slow_job import SlowJob, set_rules
from tests.fleet_factory import OPERATOR, enrol_host
from tests.played_host import PlayedHost


def test_a_swap_waits_for_the_next_checkpoint_and_the_job_continues_without_the_host(
    units: UnitOfWorkFactory, clock: SetClock
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap")
    spare = PlayedHost(units, enrol_host(units, "gamma"))
    spare.beat()
    slow.train(4)
    slow.save()
    slow.own_s[3] = 0.24
    slow.clock.advance(1)
    spare.beat()
    (verdict,) = slow.train(5)
    assert verdict.reaction is VerdictReaction.SWAP
    assert slow.stop_reason() is None  # the checkpoint is older than the verdict
    slow.save()
    slow.rounds.once()
    assert slow.stop_reason() is StopReason.HOT_SWAP
    for host in slow.by_rank:
        record = {"stop_reason": "hot_swap", "launcher_signal": 15}
        host.report(slow.attempt.id, slow.attempt.fence, "exited", "clean", record=record)
    assert slow.fleet.attempts(slow.job_id)[0].attempt.cause is Cause.HOT_SWAP
    assert slow.avoided() == {slow.by_rank[1].node_id}
    for host in (*slow.hosts, spare):
        host.beat()
    slow.fleet.reconcile()
    slow.fleet.cycle()
    again = slow.fleet.attempts(slow.job_id)[-1]
    assert again.attempt.state is AttemptState.PLACED
    assert {part.part.node_id for part in again.hosts} == {slow.by_rank[0].node_id, spare.node_id}


@pytest.mark.parametrize("edge", ["before_commit", "after_commit"])
def test_a_keeper_that_dies_at_the_commit_of_a_swap_leaves_one_stop(
    units: UnitOfWorkFactory, clock: SetClock, edge: str
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap")
    spare = PlayedHost(units, enrol_host(units, "gamma"))
    slow.train(4)
    slow.own_s[3] = 0.24
    spare.beat()
    slow.train(5)
    slow.save()
    with arming(f"{swaps.SWAP}.{edge}=raise"):
        slow.rounds.once()
    assert slow.stop_reason() is (None if edge == "before_commit" else StopReason.HOT_SWAP)
    slow.rounds.once()
    slow.rounds.once()
    assert slow.stop_reason() is StopReason.HOT_SWAP
    assert len(slow.events("attempt.stop_requested")) == 1


def swap(slow: SlowJob, hosts: Sequence[PlayedHost]) -> VerdictRecord:
    """Let the rank of the second host be slow until its verdict, save, and run the next attempt if a swap follows."""
    slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
    slow.train(5)
    (verdict, *_) = slow.verdicts()
    slow.clock.advance(1)
    slow.save()
    slow.rounds.once()
    if slow.stop_reason() is StopReason.HOT_SWAP:
        for host in slow.by_rank:
            record = {"stop_reason": "hot_swap", "launcher_signal": 15}
            host.report(slow.attempt.id, slow.attempt.fence, "exited", "clean", record=record)
        slow.run(hosts)
    return verdict


@pytest.mark.parametrize(("budget", "reactions"), [(0, ["notify"]), (1, ["swap", "notify"]), (9, ["swap", "notify"])])
def test_a_job_has_so_many_swaps_and_none_that_only_a_dismissal_would_allow(
    units: UnitOfWorkFactory, clock: SetClock, budget: int, reactions: list[str]
) -> None:
    """With the largest budget, the rank was slow on another host before: its work is slow."""
    set_rules(units, swaps=budget)
    slow = SlowJob(units, clock, on_straggler="swap")
    hosts = [*slow.hosts, *(PlayedHost(units, enrol_host(units, name)) for name in ("gamma", "delta"))]
    found = []
    for _ in reactions:
        for host in hosts:
            host.beat()
        verdict = swap(slow, hosts)
        found.append((verdict.attempt_id, str(verdict.reaction)))
        with slow.units.begin(OPERATOR, verdicts.DISMISS) as unit:
            verdicts.dismiss(unit, verdict.id, reason="its work is larger")
    assert [reaction for _, reaction in found] == reactions
    assert len({attempt_id for attempt_id, _ in found}) == len(reactions), "each is of an attempt of its own"
    assert slow.stop_reason() is None


def test_there_is_no_swap_where_the_planner_would_place_the_job_on_the_slow_host_again(
    units: UnitOfWorkFactory, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host that is free lacks a label that the job requires."""
    plain = enrol_host

    def enrol(units: UnitOfWorkFactory, name: str) -> NodeId:
        node_id = plain(units, name)
        with units.read() as session:
            nodes = session.scalars(select(Node.id)).all()
        for each in nodes:
            with units.begin(OPERATOR, node_labels.LABEL) as unit:
                node_labels.set_labels(unit, each, {"zone": "z1"}, remove=(), reason="new")
        return node_id

    monkeypatch.setattr("tests.control.watch.slow_job.enrol_host", enrol)
    slow = SlowJob(units, clock, on_straggler="swap", node_labels={"required": {"zone": ["z1"]}})
    monkeypatch.undo()
    spare = PlayedHost(units, enrol_host(units, "gamma"))
    spare.beat()
    assert swap(slow, [*slow.hosts, spare]).reaction is VerdictReaction.NOTIFY
    assert slow.stop_reason() is None


@pytest.mark.parametrize("why", ["no host is free", "the end is near", "data", "threads", "false alarms"])
def test_there_is_no_swap_that_does_not_pay(
    units: UnitOfWorkFactory, clock: SetClock, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "false alarms":
        monkeypatch.setattr(swaps, "has_learnt", lambda *of, **_: of[2] is VerdictKind.STRAGGLER)
    wall_time = {"wall_time_s": 600.0} if why == "the end is near" else {}
    slow = SlowJob(units, clock, on_straggler="swap", **wall_time)
    if why != "no host is free":
        PlayedHost(units, enrol_host(units, "gamma")).beat()
    if why == "threads":
        slow.train(4)
    slow.own_s[3] = 0.24
    slow.more[3] = {{"data": "data_s", "threads": "threads_s"}.get(why, "cpu_wait_s"): 0.04}
    (verdict,) = slow.train(5)
    assert verdict.reaction is VerdictReaction.NOTIFY
    slow.save()
    slow.rounds.once()
    assert slow.stop_reason() is None
