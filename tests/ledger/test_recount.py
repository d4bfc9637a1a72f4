"""A recount from events agrees with the books of the rows to the millisecond, in random histories."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from ledger.accounts import Account
from ledger.books import book_of
from ledger.entries import Entry, Heading
from ledger.facts import Attempt, Cordon, Facts, Gpu, Node, Override, Period, StandingMove, Steps, Use
from ledger.recount import GROUPS, Difference, Enrolled, Event, Recounter, by_group, differences
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
        self.change(gpu, moves=(*gpu.moves, made))
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


@pytest.mark.parametrize("seed", range(25))
def test_a_recount_agrees_to_the_millisecond(seed: int) -> None:
    history = History(seed)
    history.play(150)
    recounter = history.recounter([*history.events, *history.events[:40]])
    edges = [START_MS, START_MS + 300_000, START_MS + 300_001, history.now_ms]
    for start_ms, end_ms in pairwise(edges):
        stored = book_of(history.rows.facts(start_ms, end_ms))
        recounted = book_of(recounter.facts(start_ms, end_ms))
        assert differences(stored.entries, recounted.entries) == []
        assert stored.capacity_ms == recounted.capacity_ms == 4 * (end_ms - start_ms)
        assert stored.unexplained_ms == recounted.unexplained_ms == 0


def test_random_histories_have_all_that_is_compared() -> None:
    seen: set[str] = set()
    for seed in range(25):
        history = History(seed)
        history.play(150)
        entries = book_of(history.rows.facts(START_MS, history.now_ms)).entries
        seen |= {group for _, _, group in by_group(entries)}
    assert seen >= {"used", "empty", "cleaning", "quarantined", "repair", "suspect", "unproven", "cordoned",
                    "burn_in", "no_contact"}  # fmt: skip


def test_a_lost_event_is_a_difference() -> None:
    history = History(3)
    history.play(150)
    lost = next(event for event in history.events if event.kind == "attempt.host_clean")
    recounter = history.recounter([event for event in history.events if event is not lost])
    window = START_MS, history.now_ms
    found = differences(book_of(history.rows.facts(*window)).entries, book_of(recounter.facts(*window)).entries)
    assert lost.subject_id in {one.attempt_id for one in found}


def test_hosts_within_a_gap_are_left_out() -> None:
    free = Heading("node_a", Account.FREE, "", "", (), "", "")
    retired = free._replace(account=Account.RETIRED)
    stored, recounted = [Entry(free, ("GPU-0",), (100,))], [Entry(retired, ("GPU-0",), (100,))]
    assert differences(stored, recounted) == [
        Difference("GPU-0", "", "empty", 100, 0),
        Difference("GPU-0", "", "retired", 0, 100),
    ]
    assert differences(stored, recounted, excluded={"node_a"}) == []


def test_a_part_cleaned_by_a_reboot_counts_until_the_allocation_is_released() -> None:
    """There is no event of when its host was proved clean."""
    recounter = Recounter([Enrolled("GPU-0", "node_a", 0)])
    for event in (
        Event("1", "gpu.healthy", 0, "GPU-0", {"cause": "burned_in"}),
        Event("2", "attempt.placed", 10, "attempt_a", {"job_id": "job_a", "nodes": {"node_a": ["GPU-0"]}}),
        Event("3", "attempt.ended", 50, "attempt_a", {"cause": "node_lost"}),
        Event("4", "allocation.released", 80, "allocation_a", {"attempt_id": "attempt_a"}),
    ):
        recounter.take(event)
    assert by_group(book_of(recounter.facts(0, 100)).entries) == {
        ("GPU-0", "attempt_a", "used"): 40,
        ("GPU-0", "attempt_a", "cleaning"): 30,
        ("GPU-0", "", "empty"): 30,
    }


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
