"""Claims that overlap become disjoint spans that fill the window."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.accounts import PRECEDENCE, Account
from ledger.claims import Claim, settle, sums

START_MS, END_MS = 100, 160
moments = st.integers(90, 170)
claims = st.builds(
    lambda account, one, other, attempt_id, cause: Claim(account, min(one, other), max(one, other), attempt_id, cause),
    st.sampled_from([one for one in Account if one is not Account.UNEXPLAINED]),
    moments,
    moments,
    st.sampled_from(("", "a", "b")),
    st.sampled_from(("", "x")),
)


def first_at(claimed: list[Claim], at_ms: int) -> tuple[Account, str, str]:
    """Return whose the moment is, from the rule alone."""
    there = [one for one in claimed if one.start_ms <= at_ms < one.end_ms]
    if not there:
        return Account.UNEXPLAINED, "", ""
    first = min(there, key=lambda one: (PRECEDENCE[one.account], one.start_ms, one.attempt_id, one.cause))
    return first.account, first.attempt_id, first.cause


@given(st.lists(claims, max_size=8), st.randoms(use_true_random=False))
def test_each_moment_is_the_first_accounts(claimed: list[Claim], shuffled: random.Random) -> None:
    settled = settle(claimed, START_MS, END_MS)
    assert [one.start_ms for one in settled[1:]] == [one.end_ms for one in settled[:-1]]
    assert (settled[0].start_ms, settled[-1].end_ms) == (START_MS, END_MS)
    for one in settled:
        for at_ms in range(one.start_ms, one.end_ms):
            assert (one.account, one.attempt_id, one.cause) == first_at(claimed, at_ms)
    again = [*claimed, *claimed]
    shuffled.shuffle(again)
    assert settle(again, START_MS, END_MS) == settled
    assert sum(sums(settled).values()) == END_MS - START_MS


def test_neighbours_that_differ_in_their_times_alone_are_one() -> None:
    claimed = [
        Claim(Account.FREE, 100, 120),
        Claim(Account.FREE, 120, 150),
        Claim(Account.HOLD, 150, 160, cause="resume"),
    ]
    assert settle(claimed, 100, 160) == [Claim(Account.FREE, 100, 150), Claim(Account.HOLD, 150, 160, cause="resume")]


def test_an_empty_window_has_no_spans() -> None:
    assert settle([Claim(Account.FREE, 0, 10)], 5, 5) == []


def test_a_claim_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(ValueError, match="free claims time that ends before it starts"):
        Claim(Account.FREE, 10, 9)
