"""Credits: the fleet's own faults alone, and never on what a tenant reports."""

from hypothesis import given
from hypothesis import strategies as st

from ledger.accounts import CHARGED, Account
from ledger.credits import FLEET_CAUSES, grounds_of
from muster.domain.exit.causes import CAUSE_RULES, Budget

IDS = st.frozensets(st.sampled_from(["ev_1", "ev_2", "vd_1", "rcl_1"]))
CAUSES = st.sampled_from(sorted({*FLEET_CAUSES, "user_error", "gpu_oom", "imbalance", "data", "cancelled", ""}))
ACCOUNTS = st.sampled_from(sorted(Account))
CREDITED = st.frozensets(st.sampled_from([str(one) for one in Account]))


@given(ACCOUNTS, CAUSES, IDS, CREDITED, IDS)
def test_nothing_is_given_back_without_a_measurement_of_ours(
    account: Account, cause: str, evidence: frozenset[str], accounts: frozenset[str], measured: frozenset[str]
) -> None:
    grounds = grounds_of(account, cause, evidence, accounts=accounts, measured=measured)
    if grounds:
        assert set(grounds) <= evidence & measured
        assert str(account) in accounts
        assert account in CHARGED
        assert cause in FLEET_CAUSES


@given(ACCOUNTS, CAUSES, IDS, CREDITED, IDS, IDS)
def test_more_knowledge_never_takes_a_credit_away(
    account: Account,
    cause: str,
    evidence: frozenset[str],
    accounts: frozenset[str],
    measured: frozenset[str],
    more: frozenset[str],
) -> None:
    before = grounds_of(account, cause, evidence, accounts=accounts, measured=measured)
    after = grounds_of(account, cause, evidence | more, accounts=accounts, measured=measured | more)
    assert set(after) >= set(before)


def test_a_cause_that_counts_against_a_job_gives_it_nothing_back() -> None:
    own = {str(cause) for cause, rule in CAUSE_RULES.items() if rule.budget is not Budget.INFRASTRUCTURE}
    assert not own & FLEET_CAUSES


def test_a_reclaim_explains_the_steps_that_are_trained_again_after_it_alone() -> None:
    known = {"accounts": {"replayed", "reclaim_lost"}, "measured": {"rcl_1"}}
    assert grounds_of(Account.RECLAIM_LOST, "reclaimed", {"rcl_1"}, **known)
    assert not grounds_of(Account.REPLAYED, "nccl_timeout", {"rcl_1"}, **known)
