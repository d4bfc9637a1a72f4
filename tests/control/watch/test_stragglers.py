"""Stragglers on the server: from reports of pace to one verdict a rank, and to a swap of its host."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, null, select, text, update

from control.attempts.attempts import lock_attempt
from control.attempts.ranks import gpus_by_rank
from control.attempts.stragglers import drop_windows, settle_stragglers
from control.core.unit_of_work import UnitOfWorkFactory
from control.fleet import inventory
from control.hosts import node_labels
from control.placement.pending_jobs import nodes_at_fault
from control.policy import policies
from control.telemetry.node_readings import pack_readings
from control.training import training
from control.watch import read, stragglers, swaps, verdicts
from control.watch.links import AGE, links_of
from control.watch.straggler_readings import readings_of
from control.watch.stragglers import JUDGE, MOST_UNCLEAR, StragglerRounds
from control.watch.types import VerdictRecord
from muster.db.errors import ContentionError
from muster.db.models import Event, Node, NodeLatest, StoredSignal, TrainingRank
from muster.domain.gpu.metrics import INDEX, NUM_METRICS
from muster.domain.ids import NodeId
from muster.domain.job.verdicts import VerdictKind, VerdictReaction
from muster.domain.policy.document import DEFAULT_POLICY
from muster.domain.principals import system_principal
from muster.domain.states import AttemptState, Cause, StopReason
from muster.domain.times import to_ms
from muster.failpoints import arming
from muster.wire.host import PROTOCOL_VERSION
from muster.wire.training import TrainBatch, TrainLine
from tests.control.conftest import SetClock
from tests.fleet_factory import OPERATOR, enrol_host, make_fleet
from tests.played_host import PlayedHost
from tests.stored_signals import add_signal
from watch.phases import Phase
from watch.stragglers.causes import CLOCK, THROTTLE
from watch.stragglers.judge import LONGEST_QUIET
from watch.verdicts import Verdict

STEPS = 64
"""Of a window: the smallest power of two of steps of 0.25 s that takes ten seconds."""


class SlowJob:
    """A running job of two hosts with two ranks each. ``own_s``: own compute of each rank."""

    def __init__(self, units: UnitOfWorkFactory, clock: SetClock, **spec: object) -> None:
        self.units, self.clock = units, clock
        self.fleet = make_fleet(units)
        self.hosts = [PlayedHost(units, self.fleet.node_id), PlayedHost(units, enrol_host(units, "beta"))]
        shape = {"nodes": 2, "gpus_per_node": 2, "ranks_per_node": 2}
        self.job_id = self.fleet.submit(shape=shape, restart={"max_restarts": 9}, **spec)
        self.clock.advance(3600)
        self.own_s = dict.fromkeys(range(4), 0.2)
        self.more: dict[int, dict[str, Any]] = {}
        self.step = 0
        self.rounds = StragglerRounds(units, system_principal("watch"))
        self.run(self.hosts)

    def run(self, hosts: Sequence[PlayedHost]) -> None:
        """Start the job's next attempt on some of these hosts."""
        for host in hosts:
            host.beat()
        self.fleet.reconcile()
        self.fleet.cycle()
        view = self.fleet.attempts(self.job_id)[-1]
        self.attempt = view.attempt
        known = {host.node_id: host for host in hosts}
        self.by_rank = [known[part.part.node_id] for part in sorted(view.hosts, key=lambda each: each.part.node_rank)]
        for host in self.by_rank:
            assert host.claim(self.attempt.id, self.attempt.fence).granted
            host.report(self.attempt.id, self.attempt.fence, "started")
        self.offsets = {host.node_id: 0 for host in self.by_rank}

    def send(self, node_rank: int, *lines: tuple[int, dict[str, Any]]) -> None:
        host = self.by_rank[node_rank]
        offset = self.offsets[host.node_id]
        sent = tuple(TrainLine(at_ms=to_ms(self.clock.now), rank=rank, message=message) for rank, message in lines)
        batch = TrainBatch(
            protocol=PROTOCOL_VERSION, fence=self.attempt.fence, offset=offset, next_offset=offset + 9, lines=sent
        )
        self.offsets[host.node_id] = offset + 9
        with self.units.begin(host.principal, training.RECORD, quiet=True) as unit:
            training.take(unit, self.attempt.id, batch)

    def train(self, num_windows: int) -> list[VerdictRecord]:
        """Train so many windows, judge after each, and return the verdicts."""
        for _ in range(num_windows):
            self.step += STEPS
            self.clock.advance(16)
            for node_rank in range(2):
                ranks = range(2 * node_rank, 2 * node_rank + 2)
                self.send(node_rank, *((rank, self.pace(rank)) for rank in ranks))
                self.by_rank[node_rank].beat()
            self.rounds.once()
        return self.verdicts()

    def pace(self, rank: int) -> dict[str, Any]:
        own_s = self.own_s[rank]
        parts = dict.fromkeys(("data", "forward", "backward", "optimizer", "other", "checkpoint"), 0.01)
        figures = {"own_s": own_s, "wait_s": max(self.own_s.values()) - own_s + 0.01, "own_steps": STEPS}
        spent = {f"{part}_s": seconds for part, seconds in parts.items()}
        more = self.more.get(rank, {})
        return {"type": "pace", "step": self.step, "num_steps": STEPS, "collective_s": 0.0, **spent, **figures, **more}

    def save(self) -> None:
        """Commit a checkpoint of the newest step."""
        generation = f"step-{self.step:08d}/gen-{self.attempt.fence}"
        message = {"type": "checkpoint", "step": self.step, "generation": generation, "bytes": 1, "seconds": 1.0}
        self.send(0, (0, message | {"status": "committed", "at_unix_ms": to_ms(self.clock.now)}))

    def verdicts(self) -> list[VerdictRecord]:
        with self.units.begin(self.fleet.tenant, read.READ, quiet=True) as unit:
            return list(read.list_verdicts(unit, job_id=self.job_id, limit=10))

    def events(self, kind: str) -> list[dict[str, Any]]:
        with self.units.read() as session:
            return [event.payload for event in session.scalars(select(Event).where(Event.kind == kind))]

    def stop_reason(self) -> StopReason | None:
        return self.fleet.attempts(self.job_id)[-1].attempt.stop_reason

    def avoided(self) -> frozenset[NodeId]:
        with self.units.read() as session:
            return nodes_at_fault(session, [self.job_id]).get(self.job_id, frozenset())


@pytest.fixture
def slow(units: UnitOfWorkFactory, clock: SetClock) -> SlowJob:
    return SlowJob(units, clock)


def test_a_slow_rank_has_one_verdict_that_grows_and_ends(slow: SlowJob) -> None:
    slow.own_s[3] = 0.24
    slow.more[3] = {"cpu_wait_s": 0.03}
    (verdict,) = slow.train(5)
    host = slow.by_rank[1]
    assert (verdict.kind, verdict.cause, verdict.ranks) == (VerdictKind.STRAGGLER, "host", [3])
    assert (verdict.node_id, verdict.reaction) == (host.node_id, VerdictReaction.NOTIFY)
    assert verdict.gpu.startswith("GPU-")
    assert "computes 20% longer than the 3 ranks of its place" in verdict.sentence
    with slow.units.read() as session:
        (signal_id,) = session.scalars(select(StoredSignal.signal_id))
    assert signal_id == f"verdict/{verdict.id}/host/{verdict.gpu}", "reported evidence"
    (grown,) = slow.train(3)
    assert (grown.id, grown.last_step, grown.ended_at) == (verdict.id, 7 * STEPS, None)
    slow.own_s[3] = 0.2
    (quiet,) = slow.train(16)
    assert quiet.ended_at is None, "it lasted for eight windows, and may come again"
    (ended,) = slow.train(1)
    assert (ended.last_step, ended.ended_at is None) == (8 * STEPS, False)
    assert [each["verdict_id"] for each in slow.events("attempt.verdict_ended")] == [verdict.id]
    assert len(slow.events("attempt.verdict")) == 1
    slow.own_s[3] = 0.24
    (again,) = slow.train(5)
    assert (again.id, again.ended_at) == (verdict.id, None), "a rank that is slow now and then has one verdict"


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_rank_that_is_slow_now_and_then_has_a_verdict_that_does_not_end_each_time(
    units: UnitOfWorkFactory, clock: SetClock, *, is_swapped: bool
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap" if is_swapped else "notify")
    PlayedHost(units, enrol_host(units, "gamma")).beat()
    for _ in range(3):
        slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
        slow.train(7)
        slow.own_s[3], slow.more[3] = 0.2, {}
        (verdict,) = slow.train(6)
        assert (verdict.ended_at, verdict.reaction) == (None, VerdictReaction.NOTIFY), "no swap of a rank that is fast"
    assert slow.events("attempt.verdict_ended") == []
    assert len(slow.events("attempt.verdict")) == 1
    (verdict,) = slow.train(LONGEST_QUIET - 5)
    assert verdict.ended_at is not None
    assert len(slow.events("attempt.verdict_ended")) == 1


def test_a_rank_that_computes_longer_for_an_unknown_reason_has_a_verdict_that_grows(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    (verdict,) = slow.train(20)
    assert (verdict.cause, verdict.ended_at) == ("compute", None)
    assert verdict.last_step == 24 * STEPS, "also after its windows before are forgotten"
    assert slow.events("attempt.warned") == []


@pytest.mark.parametrize("more", [{}, {"threads_s": 0.04}, {"gc_s": 0.04}])
def test_constant_additional_work_on_rank_0_is_a_warning_without_evidence_and_swap(
    units: UnitOfWorkFactory, clock: SetClock, more: dict[str, float]
) -> None:
    slow = SlowJob(units, clock, on_straggler="swap")
    PlayedHost(units, enrol_host(units, "gamma")).beat()
    slow.own_s[0] = 0.24
    slow.more[0] = more
    assert slow.train(8) == []
    slow.save()
    slow.rounds.once()
    assert slow.stop_reason() is None
    (warned,) = slow.events("attempt.warned")
    assert (warned["rank"], warned["code"]) == (0, "imbalance")
    assert "it counts as additional work of the program" in warned["reason"]
    with units.read() as session:
        assert session.scalars(select(StoredSignal.signal_id)).all() == []


def test_two_slow_ranks_of_one_window_have_a_verdict_each(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s |= {1: 0.3, 2: 0.26}
    assert sorted(each.ranks for each in slow.train(5)) == [[1], [2]]


def test_a_cause_that_is_found_later_replaces_the_unknown_one(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    slow.train(5)
    slow.more[3] = {"data_s": 0.05}
    newest, first = slow.train(5)
    assert (newest.cause, newest.ended_at) == ("data", None)
    assert (first.cause, first.ended_at is None) == ("compute", False)


def test_a_dismissed_verdict_is_not_made_again(slow: SlowJob) -> None:
    slow.train(5)
    slow.own_s[3] = 0.24
    (verdict,) = slow.train(5)
    with slow.units.begin(OPERATOR, verdicts.DISMISS) as unit:
        verdicts.dismiss(unit, verdict.id, reason="its work is larger")
    slow.train(4)
    assert [each.id for each in slow.verdicts()] == [verdict.id]


def test_stragglers_that_come_and_go_leave_room_for_a_verdict_on_a_hang(
    slow: SlowJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "MOST_OF_A_KIND", 1)
    slow.train(5)
    slow.own_s |= {1: 0.3, 2: 0.26}
    (straggler,) = slow.train(5)
    hang = Verdict(VerdictKind.HANG, "storage", (1,), "", "", Phase.STEP, straggler.step, "", None, (), "It hangs.")
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        loaded = lock_attempt(unit, slow.attempt.id)
        assert verdicts.record_verdict(unit, loaded, hang, None, VerdictReaction.NOTIFY) is not None


def test_a_program_cannot_accuse_a_rank_of_another_host(slow: SlowJob) -> None:
    for _ in range(6):
        slow.step += STEPS
        slow.clock.advance(16)
        slow.send(0, *((rank, slow.pace(rank) | ({"own_s": 9.0} if rank == 3 else {})) for rank in range(4)))
        slow.rounds.once()
    assert slow.verdicts() == []
    with slow.units.read() as session:
        assert [session.get_one(TrainingRank, (slow.attempt.id, rank)).windows for rank in (2, 3)] == [None, None]


def test_more_work_is_a_warning_and_no_verdict(slow: SlowJob) -> None:
    slow.own_s[2] = 0.3
    slow.more = {rank: {"tokens_per_step": 1500.0 if rank == 2 else 1000.0} for rank in range(4)}
    assert slow.train(7) == []
    (warned,) = slow.events("attempt.warned")
    assert (warned["rank"], warned["code"]) == (2, "imbalance")
    assert "50% more work" in warned["reason"]


def test_an_attempt_without_a_slow_rank_is_only_read(slow: SlowJob) -> None:
    slow.train(1)
    with slow.units.read() as session:
        before = session.scalars(select(Event.id).order_by(Event.id.desc())).first()
    assert slow.train(6) == []
    assert slow.rounds.once() == 0  # no new window
    with slow.units.read() as session:
        assert session.scalars(select(Event.id).order_by(Event.id.desc())).first() == before


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


def set_rules(units: UnitOfWorkFactory, **changed: object) -> None:
    rules = DEFAULT_POLICY.watch.stragglers.model_copy(update=changed)
    watch = DEFAULT_POLICY.watch.model_copy(update={"stragglers": rules})
    with units.begin(OPERATOR, policies.ACTIVATE) as unit:
        policies.store_policy(unit, DEFAULT_POLICY.model_copy(update={"watch": watch}), reason="test")


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

    monkeypatch.setattr(f"{__name__}.enrol_host", enrol)
    slow = SlowJob(units, clock, on_straggler="swap", node_labels={"required": {"zone": ["z1"]}})
    monkeypatch.undo()
    spare = PlayedHost(units, enrol_host(units, "gamma"))
    spare.beat()
    assert swap(slow, [*slow.hosts, spare]).reaction is VerdictReaction.NOTIFY
    assert slow.stop_reason() is None


def test_the_end_of_an_attempt_ends_its_verdicts_and_drops_its_windows(slow: SlowJob) -> None:
    slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
    (verdict,) = slow.train(5)
    record = {"launcher": "torchrun", "launcher_exit_code": 0, "ranks": {}}
    for host in slow.by_rank:
        host.report(slow.attempt.id, slow.attempt.fence, "exited", "clean", record=record)
    slow.send(1, (3, slow.pace(3)))  # a late report
    (ended,) = slow.verdicts()
    assert (ended.id, ended.ended_at) == (verdict.id, slow.clock.now)
    assert [each["verdict_id"] for each in slow.events("attempt.verdict_ended")] == [verdict.id]
    with slow.units.read() as session:
        rows = session.scalars(select(TrainingRank)).all()
    assert [(row.windows, row.open_window) for row in rows] == [(None, None)] * 4


def test_verdicts_end_where_nothing_is_judged_any_more(slow: SlowJob, engine: Engine) -> None:
    slow.own_s[3], slow.more[3] = 0.24, {"cpu_wait_s": 0.04}
    (verdict,) = slow.train(5)
    set_rules(slow.units, is_on=False)
    assert slow.rounds.once() == 0
    assert [each.ended_at for each in slow.verdicts()] == [slow.clock.now]
    set_rules(slow.units, is_on=True)
    (again,) = slow.train(1)
    assert (again.id, again.ended_at) == (verdict.id, None)
    with engine.begin() as connection:  # as of a program whose ranks report steps that have nothing in common
        connection.execute(update(TrainingRank).values(windows=null()))
    for _ in range(MOST_UNCLEAR + 1):
        slow.clock.advance(16)
        with engine.begin() as connection:
            connection.execute(update(TrainingRank).values(windows_at=slow.clock.now))
        assert slow.verdicts()[0].ended_at is None
        slow.rounds.once()
    assert slow.verdicts()[0].ended_at == slow.clock.now


def test_the_windows_of_few_ranks_stay_until_steps_are_thinned(slow: SlowJob) -> None:
    slow.train(3)
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        settle_stragglers(unit, lock_attempt(unit, slow.attempt.id).attempt, num_ranks=2)
    with slow.units.read() as session:
        assert all(row.windows is not None for row in session.scalars(select(TrainingRank)))
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        drop_windows(unit, [slow.attempt.id])
    with slow.units.read() as session:
        assert {(row.windows, row.open_window) for row in session.scalars(select(TrainingRank))} == {(None, None)}


def test_verdicts_of_an_attempt_and_due_swaps_are_read_by_an_index(engine: Engine) -> None:
    of_attempt = "EXPLAIN SELECT count(*) FROM verdicts WHERE attempt_id = 'att'"
    swaps_due = (
        "EXPLAIN SELECT id FROM verdicts WHERE kind = 'straggler' AND reaction = 'swap' AND state = 'standing' "
        "AND ended_at IS NULL ORDER BY id LIMIT 20"
    )
    with engine.begin() as connection:
        connection.execute(text("SET LOCAL enable_seqscan = off"))
        plans = ["\n".join(connection.scalars(text(query))) for query in (of_attempt, swaps_due)]
    assert "ix_verdicts_attempt_id_id" in plans[0]
    assert "ix_verdicts_swaps" in plans[1]


def test_readings_of_the_last_minute_explain_a_slow_rank_unless_its_gpu_is_lost(slow: SlowJob) -> None:
    host = slow.by_rank[1].node_id
    with slow.units.begin(system_principal("watch"), JUDGE, quiet=True) as unit:
        loaded = lock_attempt(unit, slow.attempt.id)
        gpus = [gpu for rank, gpu in sorted(gpus_by_rank(unit, loaded).items()) if rank in {2, 3}]
        values = np.full((2, NUM_METRICS), np.nan)
        values[:, INDEX["sm_clock_mhz"]] = 1_200.0
        values[:, INDEX["clock_event_reasons"]] = 0x40
        content = pack_readings(gpus, values, [False, True])
        latest = NodeLatest(node_id=host, boot_id="boot-1", at=unit.now, received_at=unit.now, gpu_readings=content)
        unit.session.add(latest)
        unit.session.flush()
        assert readings_of(unit, loaded) == {2: {CLOCK: 1_200.0, THROTTLE: 1.0}}
        latest.received_at = unit.now - timedelta(seconds=61)
        unit.session.flush()
        assert readings_of(unit, loaded) == {}


def test_ranks_without_own_compute_hide_no_other_job(slow: SlowJob) -> None:
    slow.own_s = {0: 0.0, 1: 0.0, 2: 0.0, 3: 0.5}
    assert slow.train(6) == []
    assert slow.events("attempt.warned") == []


def test_a_network_that_stays_slow_has_one_verdict_whatever_one_rank_does_now_and_then(slow: SlowJob) -> None:
    found: list[VerdictRecord] = []
    for number in range(24):
        is_slow_rank = number == 18
        wait_s = 0.01 if number < 12 else 0.2
        slow.own_s[3] = 0.26 if is_slow_rank else 0.2
        slow.more = {rank: {"wait_s": wait_s, "tokens_per_step": 1000.0} for rank in range(4)}
        if is_slow_rank:
            slow.more[3]["wait_s"] -= 0.06
        found = slow.train(1)
    assert [(each.cause, each.ended_at) for each in found] == [("network", None)]
    assert slow.events("attempt.verdict_ended") == []


def probed(slow: SlowJob, one: int, other: int, *, ago: timedelta = timedelta(0), **values: Any) -> None:
    """The agent of one host reported a probe of another so long ago."""
    hosts = [slow.by_rank[node_rank].node_id for node_rank in (one, other)]
    at = slow.clock.now - ago
    with slow.units.begin(OPERATOR, inventory.ENROL, quiet=True) as unit:
        columns: dict[str, Any] = {"node_id": hosts[0], "text": hosts[1], "received_at": at, "values": values}
        add_signal(unit, None, kind="pair_probe", code=None, source="agent", at=at, **columns)


def with_long_waits(slow: SlowJob, num_windows: int, **more: float) -> list[VerdictRecord]:
    slow.more = {rank: {"wait_s": 0.2, **more} for rank in range(4)}
    return slow.train(num_windows)


def test_a_link_that_probes_find_slow_names_the_network_with_its_hosts_and_share(slow: SlowJob) -> None:
    """The program reports no work: without a slow link its longer waits accuse no network."""
    slow.train(12)
    assert with_long_waits(slow, 3) == []
    probed(slow, 0, 1, ago=AGE + timedelta(seconds=60), sent=300.0, lost=90.0)
    probed(slow, 1, 0, ago=timedelta(seconds=60), sent=300.0, lost=1.0, round_trip_p99_us=900.0)
    assert with_long_waits(slow, 1) == [], "one result is too old, and the other shows a link that is well"
    probed(slow, 1, 0, sent=300.0, lost=36.0, round_trip_p99_us=900.0)
    (verdict,) = with_long_waits(slow, 1)
    assert (verdict.cause, verdict.ranks) == ("network", [2, 0])
    with slow.units.read() as session:
        names = [session.get_one(Node, slow.by_rank[node_rank].node_id).name for node_rank in (1, 0)]
    assert verdict.evidence == [f"12.0% of 300 messages between host {names[0]} and host {names[1]} were lost"]
    assert verdict.evidence[0] in verdict.sentence
    assert verdict.node_id is None, "either end of one link may be the cause"


def test_a_network_is_named_again_where_probes_name_its_link_at_last(slow: SlowJob) -> None:
    slow.more = {rank: {"tokens_per_step": 1000.0} for rank in range(4)}
    slow.train(12)
    (first,) = with_long_waits(slow, 5, tokens_per_step=1000.0)
    assert (first.cause, first.ranks) == ("network", [])
    probed(slow, 0, 1, sent=300.0, lost=0.0, round_trip_p99_us=9000.0)
    newest, ended = with_long_waits(slow, 1, tokens_per_step=1000.0)
    assert (newest.ranks, newest.ended_at, ended.id, ended.ended_at is None) == ([0, 2], None, first.id, False)
    assert "take 9.0 ms there and back (p99)" in newest.sentence
    assert [each.id for each in with_long_waits(slow, 1, tokens_per_step=1000.0)] == [newest.id, first.id]


@pytest.mark.parametrize(
    "values", [{"sent": "300", "lost": 299.0}, {"sent": 0.0, "lost": 0.0}, {"sent": 9.0, "lost": 10.0}, {}]
)
def test_a_probe_that_is_no_measurement_is_no_link(slow: SlowJob, values: dict[str, Any]) -> None:
    probed(slow, 0, 1, **values)
    with slow.units.read() as session:
        assert links_of(session, slow.attempt.id, slow.clock.now) == ()


def test_a_turn_judges_the_others_where_one_attempt_meets_a_fault_of_the_database(
    slow: SlowJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.train(1)
    num_swaps: list[int] = []
    monkeypatch.setattr(stragglers, "swap_once", lambda *_: num_swaps.append(1))

    def refuse(*_: object) -> None:
        raise ContentionError

    with monkeypatch.context() as patch:
        patch.setattr(stragglers, "windows_of", refuse)
        patch.setattr(stragglers, "retrying", lambda work: work())
        with pytest.raises(ContentionError):
            slow.train(1)
    assert num_swaps == [1]
    assert slow.rounds.once() == 1, "the next turn tries it again"
    assert num_swaps == [1, 1]


def test_an_attempt_is_judged_once_in_the_time_of_a_window_whatever_number_of_ranks_ends_one(slow: SlowJob) -> None:
    num_judged = []
    slow.step += STEPS
    for node_rank in (0, 1, 0, 1):
        slow.step += STEPS // 2
        slow.clock.advance(4)
        slow.send(node_rank, *((rank, slow.pace(rank)) for rank in range(2 * node_rank, 2 * node_rank + 2)))
        num_judged.append(slow.rounds.once())
    assert sum(num_judged) == 1


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
