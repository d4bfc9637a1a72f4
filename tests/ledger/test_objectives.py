"""Error budgets and burn rates: their rest, and from which moment to which a budget burns."""

from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.burn_rates import expected, is_right, simulated
from ledger.objectives import (
    Counts,
    History,
    Move,
    Pair,
    Tally,
    budget_of,
    burn_rate,
    burning_after,
    moves_of,
    pairs_of,
    state_changes,
    state_of,
)
from muster.domain.policy.objectives import standard_burn_rates

MINUTE_MS = 60_000
PAIRS = pairs_of(standard_burn_rates())
FAST = next(pair for pair in PAIRS if pair.name == "fast")


def test_a_budget_is_the_share_of_events_that_may_be_bad() -> None:
    budget = budget_of(Counts(good=995, bad=5), 0.99)
    assert budget.allowed == 10.0
    assert budget.left_fraction == pytest.approx(0.5)
    assert not budget.is_spent
    assert budget_of(Counts(good=990, bad=10), 0.99).is_spent
    assert budget_of(Counts(good=980, bad=20), 0.99).left_fraction == pytest.approx(-1.0)


def test_a_budget_without_events_is_whole_and_burns_not() -> None:
    assert budget_of(Counts(), 0.99).left_fraction == 1.0
    assert not budget_of(Counts(), 0.99).is_spent
    assert burn_rate(Counts(), 0.99) == 0.0
    assert Counts().good_share is None


def test_the_rate_is_exact_where_a_float_is_not() -> None:
    assert burn_rate(Counts(good=856, bad=144), 0.99) == 14.4
    at_the_rate = History([Tally(0, good=856, bad=144)])
    assert moves_of(at_the_rate, [FAST], 0.99, since_ms=-1, until_ms=0) == [Move(0, "fast", begins=True)]
    below_it = History([Tally(0, good=857, bad=143)])
    assert moves_of(below_it, [FAST], 0.99, since_ms=-1, until_ms=0) == []


def test_an_incident_begins_with_its_event_and_ends_when_the_short_window_is_below() -> None:
    events = [Tally(minute * MINUTE_MS, good=1) for minute in range(60)]
    events += [Tally(60 * MINUTE_MS + 7, bad=40), *(Tally((61 + minute) * MINUTE_MS, good=1) for minute in range(30))]
    moves = moves_of(History(events), [FAST], 0.99, since_ms=-1, until_ms=90 * MINUTE_MS)
    assert moves == [Move(60 * MINUTE_MS + 7, "fast", begins=True), Move(65 * MINUTE_MS + 7, "fast", begins=False)]


def test_it_ends_also_when_nothing_happens_any_more() -> None:
    moves = moves_of(History([Tally(1000, bad=5)]), [FAST], 0.99, since_ms=0, until_ms=10 * MINUTE_MS)
    assert moves == [Move(1000, "fast", begins=True), Move(1000 + 5 * MINUTE_MS, "fast", begins=False)]


def test_one_failure_alone_is_no_rate() -> None:
    history = History([Tally(1000, bad=1)])
    assert moves_of(history, PAIRS, 0.99, since_ms=0, until_ms=MINUTE_MS, min_bad=2) == []
    again = History([Tally(1000, bad=1), Tally(2000, bad=1)])
    assert {move.at_ms for move in moves_of(again, PAIRS, 0.99, since_ms=0, until_ms=MINUTE_MS, min_bad=2)} == {2000}


def test_the_state_is_the_most_urgent_of_the_pairs_that_burn() -> None:
    assert state_of((), PAIRS) == "ok"
    assert state_of({"lasting"}, PAIRS) == "ticket"
    assert state_of({"lasting", "slow"}, PAIRS) == "page"
    moves = [Move(5, "lasting", begins=True), Move(5, "fast", begins=True), Move(9, "fast", begins=False)]
    assert state_changes((), moves, PAIRS) == [(5, "page"), (9, "ticket")]


def test_the_state_is_right_in_200_simulated_incidents() -> None:
    incidents = [simulated(seed) for seed in range(200)]
    wrong = [seed for seed, incident in enumerate(incidents) if not is_right(incident)]
    assert wrong == []
    assert {0, 1, 2} <= {max(expected(incident)) for incident in incidents[:60]}


events = st.lists(
    st.tuples(st.integers(0, 40_000), st.integers(0, 3), st.integers(0, 3)).map(lambda each: Tally(*each)), max_size=12
)
SMALL = Pair("small", Fraction(2), 7_000, 1_500, "page")


@given(events)
def test_every_begin_and_end_is_exact_to_the_millisecond(tallies: Sequence[Tally]) -> None:
    moves = moves_of(History(tallies), [SMALL], 0.75, since_ms=-1, until_ms=60_000)
    assert [move.begins for move in moves] == [index % 2 == 0 for index in range(len(moves))]
    is_burning = False
    moments = sorted({move.at_ms + lag for move in moves for lag in (-1, 0, 1)} | set(range(0, 60_000, 997)))
    due = {move.at_ms: move.begins for move in moves}
    for at_ms in moments:
        short, long = _naive(tallies, at_ms, 1_500), _naive(tallies, at_ms, 7_000)
        is_burning = due.get(at_ms, is_burning)
        assert not is_burning or short
        assert is_burning or not (short and long)


def _naive(tallies: Sequence[Tally], at_ms: int, length_ms: int) -> bool:
    inside = [each for each in tallies if at_ms - length_ms < each.at_ms <= at_ms]
    bad, total = sum(each.bad for each in inside), sum(each.good + each.bad for each in inside)
    return total > 0 and bad * 2 >= total  # a rate of 2 with a target of 0.75: half of the events


@given(events, st.lists(st.integers(0, 60_000), max_size=5))
def test_a_history_in_parts_gives_the_same_moves(tallies: Sequence[Tally], cuts: Sequence[int]) -> None:
    history = History(tallies)
    whole = moves_of(history, [SMALL], 0.75, since_ms=-1, until_ms=60_000)
    parts: list[Move] = []
    burning: frozenset[str] = frozenset()
    since_ms = -1
    for until_ms in [*sorted(cuts), 60_000]:
        found = moves_of(history, [SMALL], 0.75, since_ms=since_ms, until_ms=until_ms, burning=burning)
        burning, since_ms = burning_after(burning, found), until_ms
        parts += found
    assert parts == whole
