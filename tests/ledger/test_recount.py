"""A recount from events agrees with the books of the rows to the millisecond, in random histories."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ledger.accounts import Account
from ledger.books import book_of
from ledger.facts import Attempt, Cordon, Facts, Gpu, Node, Override, Period, StandingMove, Steps, Use
from ledger.recount import Enrolled, Event, Key, Recounter
from ledger.recount_comparison import GROUPS, Compared, Difference, by_group, compare
from muster.domain.states import Cause, Standing
from muster.domain.times import to_time

START_MS = 1_790_000_000_000
NODES = ("node_a", "node_b")
GPUS = {f"GPU-{node_id}-{slot}": node_id for node_id in NODES for slot in range(2)}
STEP_MS = 7_919
TARGETS = [one for one in Standing if one is not Standing.RETIRED]


@dataclass
class Rows:
    """What the control plane's tables would say: kept apart from the events, as the tables are."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    uses: dict[tuple[str, str], Use] = field(default_factory=dict)

    def facts(self, start_ms: int, end_ms: int) -> Facts:
        gpus = tuple(
            replace(one, uses=tuple(use for (_, uuid), use in self.uses.items() if uuid == one.gpu_uuid))
            for one in self.gpus.values()
        )
        return Facts(start_ms, end_ms, gpus, self.nodes, self.attempts)


class History:
    """Plays what may happen, writes rows and emits events."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)  # noqa: S311  # a simulation
        self.rows, self.events, self.now_ms, self.num = Rows(), list[Event](), START_MS, 0
        for node_id in NODES:
            self.rows.nodes[node_id] = Node(node_id, silences=(Period(self.now_ms, None, "lost"),))
            self.emit("node.enrolled", node_id, {"name": node_id, "num_gpus": 2})
        for uuid, node_id in GPUS.items():
            moves = (StandingMove(self.now_ms, Standing.UNPROVEN),)
            self.rows.gpus[uuid] = Gpu(uuid, node_id, "", "", self.now_ms, moves=moves)

    def play(self, num: int) -> None:
        acts = (self.move, self.contact, self.cordon, self.uncordon, self.override, self.burn_in, self.place,
                self.train, self.exit, self.clean, self.hold)  # fmt: skip
        for _ in range(num):
            self.now_ms += self.rng.randrange(1, 2 * STEP_MS)
            self.rng.choice(acts)()

    def emit(self, kind: str, subject_id: str, payload: Mapping[str, Any]) -> None:
        self.num += 1
        self.events.append(Event(f"event_{self.num}", kind, self.now_ms, subject_id, dict(payload)))

    def a_gpu(self) -> Gpu:
        return self.rows.gpus[self.rng.choice(list(GPUS))]

    def change(self, gpu: Gpu, **changes: Any) -> None:
        self.rows.gpus[gpu.gpu_uuid] = replace(gpu, **changes)

    def move(self) -> None:
        gpu, target = self.a_gpu(), self.rng.choice(TARGETS)
        made = StandingMove(self.now_ms, target, "by_score", ("ev_1",), len(gpu.moves))
        repairs = gpu.repairs
        if repairs and repairs[-1].end_ms is None:
            repairs = (*repairs[:-1], replace(repairs[-1], end_ms=self.now_ms))
        if target is Standing.REPAIR:
            repairs = (*repairs, Period(self.now_ms, None, "reset", ("repair_1",)))
        self.change(gpu, moves=(*gpu.moves, made), repairs=repairs)
        self.emit(f"gpu.{target.lower()}", gpu.gpu_uuid, {"cause": "by_score", "evidence_ids": ["ev_1"]})

    def contact(self) -> None:
        node = self.rows.nodes[self.rng.choice(NODES)]
        is_silent = bool(node.silences) and node.silences[-1].end_ms is None
        target = self.rng.choice(("live", "lost")) if is_silent else "silent"
        ended = node.silences
        if is_silent:
            ended = (*ended[:-1], replace(ended[-1], end_ms=self.now_ms))
        more = () if target == "live" else (Period(self.now_ms, None, target),)
        self.rows.nodes[node.node_id] = replace(node, silences=(*ended, *more))
        self.emit(f"node.{target}", node.node_id, {"from": "x", "to": target.upper()})

    def cordon(self) -> None:
        cordon_id = f"cordon_{self.num}"
        until_ms = self.now_ms + STEP_MS * 5 if self.rng.random() < 0.5 else None
        starts_ms = self.now_ms + STEP_MS if self.rng.random() < 0.3 else self.now_ms
        made = Cordon(starts_ms, until_ms, "person", cordon_id)
        payload = {"cordon_id": cordon_id, "reason_code": "person",
                   "until": None if until_ms is None else to_time(until_ms).isoformat()}  # fmt: skip
        if starts_ms != self.now_ms:
            payload["starts_at"] = to_time(starts_ms).isoformat()
        if self.rng.random() < 0.5:
            gpu = self.a_gpu()
            self.change(gpu, cordons=(*gpu.cordons, made))
            self.emit("gpu.cordoned", gpu.gpu_uuid, payload)
        else:
            node = self.rows.nodes[self.rng.choice(NODES)]
            self.rows.nodes[node.node_id] = replace(node, cordons=(*node.cordons, made))
            self.emit("node.cordoned", node.node_id, payload)

    def uncordon(self) -> None:
        for node in self.rows.nodes.values():
            if node.cordons and (node.cordons[-1].end_ms or self.now_ms) >= self.now_ms >= node.cordons[-1].start_ms:
                last = replace(node.cordons[-1], end_ms=self.now_ms)
                self.rows.nodes[node.node_id] = replace(node, cordons=(*node.cordons[:-1], last))
                self.emit("node.uncordoned", node.node_id, {"cordon_id": last.cordon_id})
                return

    def override(self) -> None:
        gpu, override_id = self.a_gpu(), f"override_{self.num}"
        standing, until_ms = self.rng.choice((Standing.HEALTHY, Standing.QUARANTINED)), self.now_ms + 9 * STEP_MS
        before = tuple(replace(one, end_ms=min(one.end_ms, self.now_ms)) for one in gpu.overrides)
        self.change(gpu, overrides=(*before, Override(self.now_ms, until_ms, standing, override_id)))
        payload = {"override_id": override_id, "standing": standing.value, "until": to_time(until_ms).isoformat()}
        self.emit("gpu.overridden", gpu.gpu_uuid, payload)

    def burn_in(self) -> None:
        gpu = self.a_gpu()
        if gpu.burn_ins and gpu.burn_ins[-1].end_ms is None:
            ended = replace(gpu.burn_ins[-1], end_ms=self.now_ms)
            self.change(gpu, burn_ins=(*gpu.burn_ins[:-1], ended))
            what = self.rng.choice(("measured", "abandoned", "given_back"))
            self.emit(f"gpu.burn_in_{what}", gpu.gpu_uuid, {"burn_in_id": "b", "try": 1})
        else:
            self.change(gpu, burn_ins=(*gpu.burn_ins, Period(self.now_ms, None, "", ("b",))))
            self.emit("gpu.burn_in_began", gpu.gpu_uuid, {"burn_in_id": "b", "try": 1})

    def place(self) -> None:
        taken = {uuid for (attempt_id, uuid), use in self.rows.uses.items() if not self.is_over(attempt_id, use)}
        free = [uuid for uuid in GPUS if uuid not in taken]
        if not free:
            return
        attempt_id = f"attempt_{self.num}"
        picks = self.rng.sample(free, self.rng.randint(1, len(free)))
        self.rows.attempts[attempt_id] = Attempt(attempt_id, self.now_ms, job_id="job_a", claimed_ms=self.now_ms)
        for uuid in picks:
            self.rows.uses[attempt_id, uuid] = Use(attempt_id, self.now_ms)
        nodes = {node_id: [uuid for uuid in picks if GPUS[uuid] == node_id] for node_id in NODES}
        payload = {"job_id": "job_a", "nodes": {node_id: own for node_id, own in nodes.items() if own}}
        self.emit("attempt.placed", attempt_id, payload)

    def is_over(self, attempt_id: str, use: Use) -> bool:
        return use.clean_ms is not None and self.rows.attempts[attempt_id].ended_ms is not None

    def train(self) -> None:
        """Report steps, which are in no event."""
        for attempt in self.rows.attempts.values():
            if attempt.ended_ms is None:
                made = Steps(len(attempt.steps) + 1, len(attempt.steps) + 1, self.now_ms, STEP_MS)
                self.rows.attempts[attempt.attempt_id] = replace(attempt, steps=(*attempt.steps, made))

    def hold(self) -> None:
        gpu = self.a_gpu()
        self.change(gpu, holds=(*gpu.holds, Period(self.now_ms, self.now_ms + STEP_MS, "reclaim", ("job_b",))))

    def exit(self) -> None:
        for (attempt_id, uuid), use in self.rows.uses.items():
            if use.exited_ms is None and self.rng.random() < 0.5:
                self.of_part(attempt_id, GPUS[uuid], exited_ms=self.now_ms)
                self.emit("attempt.host_exited", attempt_id, {"job_id": "job_a", "node_id": GPUS[uuid]})
                self.end(attempt_id)
                return

    def end(self, attempt_id: str) -> None:
        attempt = self.rows.attempts[attempt_id]
        if all(use.exited_ms is not None for (owner, _), use in self.rows.uses.items() if owner == attempt_id):
            self.rows.attempts[attempt_id] = replace(attempt, ended_ms=self.now_ms, end_cause=Cause.SUCCEEDED)
            self.emit("attempt.ended", attempt_id, {"job_id": "job_a", "cause": "succeeded"})

    def clean(self) -> None:
        for (attempt_id, uuid), use in self.rows.uses.items():
            if use.exited_ms is not None and use.clean_ms is None and self.rng.random() < 0.5:
                self.of_part(attempt_id, GPUS[uuid], clean_ms=self.now_ms)
                self.emit("attempt.host_clean", attempt_id, {"job_id": "job_a", "node_id": GPUS[uuid]})
                return

    def of_part(self, attempt_id: str, node_id: str, **changes: Any) -> None:
        for (owner, uuid), use in list(self.rows.uses.items()):
            if owner == attempt_id and GPUS[uuid] == node_id:
                self.rows.uses[owner, uuid] = replace(use, **changes)

    def recounter(self, events: list[Event]) -> Recounter:
        found = Recounter(Enrolled(uuid, node_id, START_MS) for uuid, node_id in GPUS.items())
        for event in events:
            found.take(event)
        return found

    def compared(self, edges: list[int], events: list[Event]) -> list[Compared]:
        """Return the comparison of the books of the rows with a recount of the events, by window."""
        recounted = self.recounter(events).count(edges)
        stored = (book_of(self.rows.facts(*window)) for window in pairwise(edges))
        return [compare(by_group(one.entries), other, {}) for one, other in zip(stored, recounted, strict=True)]


@pytest.mark.parametrize("seed", range(25))
def test_a_recount_agrees_to_the_millisecond(seed: int) -> None:
    history = History(seed)
    history.play(150)
    edges = [START_MS, START_MS + 300_000, START_MS + 300_001, history.now_ms]
    assert history.compared(edges, [*history.events, *history.events[:40]]) == [Compared()] * 3
    for (start_ms, end_ms), counted in zip(
        pairwise(edges), history.recounter(history.events).count(edges), strict=True
    ):
        assert sum(counted.values()) == 4 * (end_ms - start_ms)


def test_random_histories_have_all_that_is_compared() -> None:
    seen: set[str] = set()
    for seed in range(25):
        history = History(seed)
        history.play(150)
        entries = book_of(history.rows.facts(START_MS, history.now_ms)).entries
        seen |= {group for _, _, group in by_group(entries)}
    assert seen >= {"used", "empty", "cleaning", "quarantined", "repair", "suspect", "unproven", "cordoned",
                    "burn_in", "no_contact"}  # fmt: skip


@pytest.mark.parametrize("kind", ["attempt.host_clean", "attempt.placed", "node.silent", "gpu.repair"])
def test_a_lost_event_is_a_difference(kind: str) -> None:
    history = History(3)
    history.play(150)
    lost = next(event for event in history.events if event.kind == kind)
    (found,) = history.compared([START_MS, history.now_ms], [event for event in history.events if event is not lost])
    assert found.differences
    assert found.outside_ms > 0


def test_the_events_that_decide_are_named() -> None:
    recounter = Recounter([Enrolled("GPU-0", "node_a", 0), Enrolled("GPU-1", "node_a", 0)])
    for event in (
        Event("1", "node.live", 0, "node_a", {}),
        Event("2", "gpu.healthy", 1, "GPU-0", {}),
        Event("3", "gpu.healthy", 1, "GPU-1", {}),
        Event("4", "gpu.suspect", 2, "GPU-0", {}),
        Event("5", "attempt.placed", 10, "attempt_a", {"job_id": "job_a", "nodes": {"node_a": ["GPU-0"]}}),
        Event("6", "attempt.placed", 10, "attempt_b", {"job_id": "job_a", "nodes": {"node_a": ["GPU-1"]}}),
        Event("7", "gpu.healthy", 30, "GPU-0", {}),
    ):
        recounter.take(event)
    assert [each.event_id for each in recounter.deciding("GPU-0", 5, 20)] == ["1", "4", "5"]


def test_a_difference_within_a_gap_is_counted_apart_and_a_longer_one_is_not_explained_by_it() -> None:
    stored, recounted = {Key("GPU-0", "", "empty"): 100}, {Key("GPU-0", "", "retired"): 100}
    both = [Difference("GPU-0", "", "empty", 100, 0), Difference("GPU-0", "", "retired", 0, 100)]
    assert compare(stored, recounted, {}) == Compared(both, outside_ms=100)
    assert compare(stored, recounted, {"GPU-0": 100}) == Compared(in_gaps=1, in_gaps_ms=100)
    assert compare(stored, recounted, {"GPU-0": 99}) == Compared(both, outside_ms=1, in_gaps=1, in_gaps_ms=99)
    assert compare({}, recounted, {}) == Compared(both[1:], outside_ms=100), "time that only one of them has"


PLACED = Event("2", "attempt.placed", 10, "attempt_a", {"job_id": "job_a", "nodes": {"node_a": ["GPU-0"]}})
ENDED = Event("3", "attempt.ended", 50, "attempt_a", {"cause": "node_lost"})
RELEASED = Event("4", "allocation.released", 80, "allocation_a", {"attempt_id": "attempt_a"})


def test_a_part_cleaned_by_a_reboot_counts_until_the_allocation_is_released() -> None:
    """An earlier release emitted no event of it."""
    recounter = Recounter([Enrolled("GPU-0", "node_a", 0)])
    for event in (Event("1", "gpu.healthy", 0, "GPU-0", {"cause": "burned_in"}), PLACED, ENDED, RELEASED):
        recounter.take(event)
    assert next(recounter.count([0, 100])) == {
        ("GPU-0", "attempt_a", "used"): 40,
        ("GPU-0", "attempt_a", "cleaning"): 30,
        ("GPU-0", "", "empty"): 30,
    }


def test_when_one_of_several_parts_without_an_event_was_clean_is_unknown_and_agrees_with_nothing() -> None:
    nodes = {"node_a": ["GPU-0"], "node_b": ["GPU-1"]}
    recounter = Recounter([Enrolled("GPU-0", "node_a", 0), Enrolled("GPU-1", "node_b", 0)])
    for event in (Event("0", "gpu.healthy", 0, "GPU-0", {}), Event("1", "gpu.healthy", 0, "GPU-1", {}),
                  replace(PLACED, payload={"job_id": "job_a", "nodes": nodes}), ENDED, RELEASED):  # fmt: skip
        recounter.take(event)
    (counted,) = recounter.count([0, 100], only="GPU-0")
    assert counted == {("GPU-0", "attempt_a", "used"): 40, ("GPU-0", "attempt_a", "unknown"): 30,
                       ("GPU-0", "", "empty"): 30}  # fmt: skip
    used, cleaning, empty = (Key("GPU-0", "attempt_a", "used"), Key("GPU-0", "attempt_a", "cleaning"),
                             Key("GPU-0", "", "empty"))  # fmt: skip
    assert compare({used: 40, cleaning: 10, empty: 50}, counted, {}) == Compared(unknown=1, unknown_ms=30)
    assert compare({used: 50, empty: 50}, counted, {}) == Compared(unknown=1, unknown_ms=30)
    found = compare({used: 30, cleaning: 30, empty: 40}, counted, {})
    assert (found.outside_ms, found.unknown_ms) == (10, 30), "the attempt had it for 40 ms at least"


def test_an_override_and_a_burn_in_end_with_their_own_events_alone() -> None:
    def counted(*events: Event) -> dict[Key, int]:
        recounter = Recounter([Enrolled("GPU-0", "node_a", 0)])
        for event in (Event("0", "gpu.healthy", 0, "GPU-0", {}), *events):
            recounter.take(event)
        return next(recounter.count([0, 100]))

    until = {"override_id": "o", "standing": "QUARANTINED", "until": to_time(60).isoformat()}
    overridden = Event("1", "gpu.overridden", 10, "GPU-0", until)
    expired = Event("2", "gpu.override_expired", 70, "GPU-0", {"override_id": "o"})
    assert counted(overridden) == counted(overridden, expired)
    assert counted(overridden, expired)[Key("GPU-0", "", "quarantined")] == 50
    began = Event("1", "gpu.burn_in_began", 10, "GPU-0", {"burn_in_id": "b"})
    of_an_earlier = Event("2", "gpu.burn_in_passed", 20, "GPU-0", {"burn_in_id": "a"})
    judged = Event("3", "gpu.burn_in_passed", 30, "GPU-0", {"burn_in_id": "b"})
    assert counted(began, of_an_earlier)[Key("GPU-0", "", "burn_in")] == 90
    assert counted(began, of_an_earlier, judged)[Key("GPU-0", "", "burn_in")] == 20, "no later than its verdict"


def test_a_cordon_that_got_an_end_later_ends_then_and_not_when_that_was_noticed() -> None:
    """So it is with the cordon of a repair that outlives it."""
    recounter = Recounter([Enrolled("GPU-0", "node_a", 0)])
    cordon = {"cordon_id": "c", "reason_code": "node_repair", "until": None}
    for event in (
        Event("0", "gpu.healthy", 0, "GPU-0", {}),
        Event("1", "node.cordoned", 10, "node_a", cordon),
        Event("2", "node.uncordoned", 70, "node_a", {**cordon, "until": to_time(60).isoformat()}),
    ):
        recounter.take(event)
    assert next(recounter.count([0, 100]))[Key("GPU-0", "", "cordoned")] == 50


def test_an_enrolment_that_names_its_gpus_needs_no_inventory() -> None:
    recounter = Recounter()
    recounter.take(Event("1", "node.enrolled", 10, "node_a", {"gpus": ["GPU-0"]}))
    recounter.take(Event("2", "node.gpus_added", 30, "node_a", {"gpus": ["GPU-1"]}))
    assert next(recounter.count([0, 50])) == {("GPU-0", "", "no_contact"): 40, ("GPU-1", "", "no_contact"): 20}


def test_every_account_is_verified_by_itself_or_in_a_group() -> None:
    alone = {account for account in Account if account not in GROUPS}
    assert alone == {
        Account.RETIRED,
        Account.CLEANING,
        Account.REPAIR,
        Account.QUARANTINED,
        Account.CORDONED,
        Account.BURN_IN,
        Account.NO_CONTACT,
        Account.UNPROVEN,
        Account.SUSPECT,
        Account.UNEXPLAINED,
    }
