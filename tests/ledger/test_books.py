"""The books of a window: every GPU-millisecond is in exactly one entry, whatever the facts are."""

import random
from collections import Counter
from dataclasses import fields, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledger.accounts import Account
from ledger.attempt_claims import NO_STEP, UNREPORTED
from ledger.books import UNKNOWN_ATTEMPT, Book, book_of
from ledger.entries import total
from ledger.facts import Attempt, Cordon, Facts, Gpu, Node, Period, StandingMove, Steps, Use, Wait
from muster.domain.states import Cause, Standing
from tests.ledger import strategies
from tests.ledger.strategies import END_MS, FAR_MS, START_MS

HEALTHY = StandingMove(0, Standing.HEALTHY)


def gpu(number: int = 0, node_id: str = "node_a", **more: Any) -> Gpu:
    moves = more.pop("moves", (HEALTHY,))
    return Gpu(f"GPU-{number}", node_id, "h100", "c1", more.pop("from_ms", 0), moves=moves, **more)


def counted(book: Book) -> dict[tuple[str, str], int]:
    """Return the milliseconds by account and cause."""
    found: Counter[tuple[str, str]] = Counter()
    for entry in book.entries:
        found[entry.heading.account.value, entry.heading.cause] += entry.num_ms
    return dict(found)


def time_of_gpus(book: Book) -> dict[str, int]:
    found: Counter[str] = Counter()
    for entry in book.entries:
        for uuid, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
            found[uuid] += num_ms
    return dict(found)


def enrolled_ms(facts: Facts) -> dict[str, int]:
    """Return the enrolled milliseconds of each GPU, moment by moment: of two places the one it came to last counts."""
    found: Counter[str] = Counter()
    for at_ms in range(facts.start_ms, facts.end_ms):
        newest: dict[str, tuple[int, str, str, bool]] = {}
        for one in facts.gpus:
            is_there = one.until_ms is None or at_ms < one.until_ms
            if one.from_ms <= at_ms:
                place = (one.from_ms, one.node_id, repr(one), is_there)
                newest[one.gpu_uuid] = max(newest.get(one.gpu_uuid, place), place)
        found.update(uuid for uuid, place in newest.items() if place[3])
    return dict(found)


@given(strategies.facts)
def test_the_entries_of_a_gpu_are_exactly_its_enrolled_time(facts: Facts) -> None:
    book = book_of(facts)
    assert time_of_gpus(book) == enrolled_ms(facts)
    assert book.capacity_ms == sum(enrolled_ms(facts).values())
    assert book.num_gpus == len(enrolled_ms(facts))
    assert all(num_ms > 0 for entry in book.entries for num_ms in entry.gpu_ms)


@given(strategies.facts)
def test_only_unknown_attempts_and_standings_are_unexplained(facts: Facts) -> None:
    known = replace(facts, gpus=tuple(replace(one, moves=(*one.moves, HEALTHY)) for one in facts.gpus))
    book = book_of(known)
    unexplained = [entry.heading for entry in book.entries if entry.heading.account is Account.UNEXPLAINED]
    assert {(one.attempt_id, one.cause) for one in unexplained} <= {("attempt_unknown", UNKNOWN_ATTEMPT)}
    assert book.unexplained_ms == sum(
        entry.num_ms for entry in book.entries if entry.heading.account is Account.UNEXPLAINED
    )


@given(strategies.facts, st.randoms(use_true_random=False))
def test_the_order_of_facts_and_their_doubles_change_nothing(facts: Facts, shuffled: random.Random) -> None:
    def again(values: tuple[Any, ...]) -> tuple[Any, ...]:
        doubled = [_again(value) for value in values] * 2
        shuffled.shuffle(doubled)
        return tuple(doubled)

    def _again(value: Any) -> Any:
        if isinstance(value, Gpu | Node | Attempt):
            told = {one.name: getattr(value, one.name) for one in fields(value)}
            many = {name: again(one) for name, one in told.items() if isinstance(one, tuple) and name != "evidence"}
            return type(value)(**{**told, **many})
        return value

    other = replace(
        facts,
        gpus=again(facts.gpus),
        nodes={node_id: _again(node) for node_id, node in reversed(list(facts.nodes.items()))},
        attempts={attempt_id: _again(one) for attempt_id, one in reversed(list(facts.attempts.items()))},
        waits=again(facts.waits),
    )
    assert total(book_of(other).entries) == total(book_of(facts).entries)


@given(strategies.facts)
def test_the_time_of_an_attempt_is_what_its_gpus_were_assigned(facts: Facts) -> None:
    """Whatever its program reports, by whichever clock: nothing of it is outside, and nothing counts twice."""
    facts = replace(facts, gpus=tuple({one.gpu_uuid: one for one in facts.gpus}.values()))
    assigned: Counter[str] = Counter()
    for one in facts.gpus:
        taken: dict[int, tuple[int, str]] = {}
        for use in sorted(set(one.uses), key=lambda use: (use.placed_ms, use.attempt_id)):
            attempt = facts.attempts.get(use.attempt_id)
            free_ms = max(_end(use.clean_ms), _end(attempt.ended_ms) if attempt else 0)
            for at_ms in range(max(START_MS, one.from_ms, use.placed_ms), min(_end(one.until_ms), free_ms)):
                taken.setdefault(at_ms, (use.placed_ms, use.attempt_id))
        assigned.update(attempt_id for _, attempt_id in taken.values())
    told: Counter[str] = Counter()
    for entry in book_of(facts).entries:
        told[entry.heading.attempt_id] += entry.num_ms
    del told[""]
    assert told == assigned


def _end(end_ms: int | None) -> int:
    return END_MS if end_ms is None else min(end_ms, END_MS)


@given(strategies.facts, st.integers(-FAR_MS, FAR_MS))
def test_a_wrong_clock_of_a_host_moves_time_within_its_attempt_alone(facts: Facts, off_ms: int) -> None:
    def moved(attempt: Attempt) -> Attempt:
        return replace(
            attempt,
            steps=tuple(replace(one, end_ms=one.end_ms + off_ms) for one in attempt.steps),
            first_step_ms=None if attempt.first_step_ms is None else attempt.first_step_ms + off_ms,
            saves=tuple(_moved(one, off_ms) for one in attempt.saves),
            restores=tuple(_moved(one, off_ms) for one in attempt.restores),
        )

    off = replace(facts, attempts={key: moved(one) for key, one in facts.attempts.items()})
    by_attempt = []
    for one in (facts, off):
        found: Counter[tuple[str, str, str]] = Counter()
        for entry in book_of(one).entries:
            for uuid, num_ms in zip(entry.gpus, entry.gpu_ms, strict=True):
                found[entry.heading.node_id, entry.heading.attempt_id, uuid] += num_ms
        by_attempt.append(found)
    assert by_attempt[0] == by_attempt[1]


def _moved(one: Period, off_ms: int) -> Period:
    return replace(one, start_ms=one.start_ms + off_ms, end_ms=None if one.end_ms is None else one.end_ms + off_ms)


def test_gpus_of_a_host_that_are_alike_are_one_entry() -> None:
    use = Use("attempt_a", 0)
    attempt = Attempt(
        "attempt_a",
        0,
        job_id="job_a",
        tenant_id="t",
        tier="spot",
        claimed_ms=1,
        running_ms=2,
        first_step_ms=5,
        steps=(Steps(1, 10, 1_090, 90),),
    )
    gpus = tuple(gpu(number, uses=(use,)) for number in range(8))
    book = book_of(Facts(1_000, 1_100, gpus, {"node_a": Node("node_a", "r1", "s1")}, {"attempt_a": attempt}))
    assert counted(book) == {("productive", ""): 8 * 90, ("idle", NO_STEP): 8 * 10}
    assert len(book.entries) == 2
    entry = book.entries[0]
    assert entry.gpus == tuple(f"GPU-{number}" for number in range(8))
    assert (entry.heading.rack, entry.heading.site, entry.heading.job_id) == ("r1", "s1", "job_a")
    assert (entry.heading.tenant_id, entry.heading.tier) == ("t", "spot")


def test_an_attempt_without_facts_is_unexplained() -> None:
    book = book_of(Facts(1_000, 1_100, (gpu(uses=(Use("attempt_x", 1_040),)),)))
    assert counted(book) == {("unexplained", UNKNOWN_ATTEMPT): 60, ("free", ""): 40}
    assert book.unexplained_ms == 60


def test_a_gpu_that_moves_hosts_counts_on_each_host_for_its_time() -> None:
    places = (gpu(0, "node_a", until_ms=1_030), gpu(0, "node_b", from_ms=1_050))
    book = book_of(Facts(1_000, 1_100, places))
    assert {entry.heading.node_id: entry.num_ms for entry in book.entries} == {"node_a": 30, "node_b": 50}
    assert book.num_gpus == 1


def test_a_silent_host_of_a_running_attempt_has_no_contact_but_for_reported_steps() -> None:
    """Rank 0 reports the steps of all hosts. What is in no report is unknown there, and idle elsewhere."""
    use = Use("attempt_a", 0)
    attempt = Attempt("attempt_a", 0, claimed_ms=0, running_ms=0, first_step_ms=0, steps=(Steps(1, 1, 1_040, 40),))
    gpus = (gpu(0, "node_a", uses=(use,)), gpu(1, "node_b", uses=(use,)))
    nodes = {"node_b": Node("node_b", silences=(Period(1_020, 1_080, "lost"),))}
    book = book_of(Facts(1_000, 1_100, gpus, nodes, {"attempt_a": attempt}))
    told = {(entry.heading.node_id, entry.heading.account.value): entry.num_ms for entry in book.entries}
    assert told == {
        ("node_a", "productive"): 40,
        ("node_a", "idle"): 60,
        ("node_b", "productive"): 40,
        ("node_b", "no_contact"): 40,
        ("node_b", "idle"): 20,
    }
    assert {entry.heading.attempt_id for entry in book.entries} == {"attempt_a"}


def test_a_program_without_reports_is_productive_while_its_host_has_contact() -> None:
    attempt = Attempt("attempt_a", 1_000, claimed_ms=1_005, running_ms=1_010, has_reports=False)
    nodes = {"node_a": Node("node_a", silences=(Period(1_080, None, "silent"),))}
    facts = Facts(1_000, 1_100, (gpu(uses=(Use("attempt_a", 1_000),)),), nodes, {"attempt_a": attempt})
    assert counted(book_of(facts)) == {
        ("starting", "claim"): 5,
        ("starting", "launch"): 5,
        ("productive", UNREPORTED): 70,
        ("no_contact", "silent"): 20,
    }


def test_a_host_that_is_clean_before_its_attempt_has_ended_is_not_free() -> None:
    used = gpu(uses=(Use("attempt_a", 1_000, 1_020, 1_030),))
    attempt = Attempt(
        "attempt_a",
        1_000,
        claimed_ms=1_000,
        running_ms=1_000,
        ended_ms=1_070,
        has_reports=False,
        end_cause=Cause.SUCCEEDED,
    )
    told = counted(book_of(Facts(1_000, 1_100, (used,), attempts={"attempt_a": attempt})))
    assert told == {("productive", UNREPORTED): 20, ("cleaning", "succeeded"): 50, ("free", ""): 30}


def test_the_order_of_what_keeps_an_empty_gpu() -> None:
    kept = gpu(
        moves=(
            StandingMove(0, Standing.HEALTHY),
            StandingMove(1_010, Standing.QUARANTINED, "xid", ("e1",)),
            StandingMove(1_030, Standing.REPAIR, "ordered"),
            StandingMove(1_040, Standing.UNPROVEN),
            StandingMove(1_060, Standing.HEALTHY),
            StandingMove(1_095, Standing.RETIRED, "person"),
        ),
        cordons=(Cordon(1_020, 1_050, "person", "c1"),),
        burn_ins=(Period(1_050, 1_055, "repaired", ("b1",)),),
        holds=(Period(1_070, 1_075, "reclaim", ("job_b",)),),
        spares=(Period(1_075, 1_080, "spare"),),
    )
    nodes = {"node_a": Node("node_a", cordons=(Cordon(1_080, 1_085, "drain", "c2", is_drain=True),), group="g1")}
    facts = Facts(
        1_000, 1_100, (kept,), nodes, waits=(Wait(1_000, 1_090, "quota", "g1"), Wait(0, None, "labels", "g2"))
    )
    assert counted(book_of(facts)) == {
        ("pending", "quota"): 10 + 10 + 5,
        ("quarantined", "xid"): 20,
        ("repair", "ordered"): 10,
        ("cordoned", "person"): 10,
        ("burn_in", "repaired"): 5,
        ("unproven", ""): 5,
        ("hold", "reclaim"): 5,
        ("spare", "spare"): 5,
        ("draining", "drain"): 5,
        ("free", ""): 5,
        ("retired", "person"): 5,
    }


def test_a_training_gpu_counts_as_training_whatever_its_standing_is() -> None:
    used = gpu(
        uses=(Use("attempt_a", 0, 1_050, 1_070),),
        moves=(HEALTHY, StandingMove(1_010, Standing.QUARANTINED, "xid", ("e1",))),
        cordons=(Cordon(0, None, "person"),),
    )
    attempt = Attempt(
        "attempt_a",
        0,
        claimed_ms=0,
        running_ms=0,
        ended_ms=1_055,
        end_cause=Cause.SUCCEEDED,
        first_step_ms=0,
        steps=(Steps(1, 50, 1_050, 50),),
    )
    book = book_of(Facts(1_000, 1_100, (used,), attempts={"attempt_a": attempt}))
    assert counted(book) == {("productive", ""): 50, ("cleaning", "succeeded"): 20, ("quarantined", "xid"): 30}
    assert {entry.heading.account: entry.heading.attempt_id for entry in book.entries} == {
        Account.PRODUCTIVE: "attempt_a",
        Account.CLEANING: "attempt_a",
        Account.QUARANTINED: "",
    }
