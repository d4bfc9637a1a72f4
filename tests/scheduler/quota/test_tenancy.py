"""What quotas allow: the smallest limit binds, and a department is guaranteed what its teams are."""

import pytest

from muster.domain.ids import TenantId
from scheduler.quota.tenancy import Holdings, Limit, Member, Quota, Tenancy

TOP, A, B = (TenantId(name) for name in ("top", "a", "b"))
TREE = {A: Member(TOP), B: Member(TOP)}


@pytest.mark.parametrize(
    ("quota", "most"),
    [(Quota(4, 4, 6), 6), (Quota(4, 1, 6), 5), (Quota(4), None), (Quota(4, 0), 4), (Quota(4, ceiling=9), 9)],
)
def test_the_smaller_of_the_two_limits_binds(quota: Quota, most: int | None) -> None:
    assert quota.most == most


def test_a_department_is_guaranteed_no_less_than_its_own_and_no_less_than_its_teams() -> None:
    teams = {(A, "spot"): Quota(4), (B, "spot"): Quota(3)}
    assert Tenancy(TREE, {**teams, (TOP, "spot"): Quota(9)}).guarantees("spot") == {A: 4, B: 3, TOP: 9}
    assert Tenancy(TREE, {**teams, (TOP, "spot"): Quota(5)}).guarantees("spot") == {A: 4, B: 3, TOP: 7}
    assert Tenancy(TREE, {**teams, (TOP, "spot"): Quota(5)}).all_guaranteed("spot") == 7, "teams count once"


@pytest.mark.parametrize(("limit", "left", "then"), [(9, 3, 3), (9, 8, 5), (2, 3, -2), (2, -9, -2), (9, -1, 0)])
def test_a_limit_leaves_no_more_than_requested_and_never_less_than_nothing_for_it(
    limit: int, left: int, then: int
) -> None:
    assert Limit(A, 4, limit, is_ceiling=True).leaving(left).left == then


def test_the_limit_that_leaves_least_binds_and_none_leaves_less_than_nothing() -> None:
    holdings = Holdings(Tenancy(TREE, {(A, "spot"): Quota(ceiling=8), (TOP, "spot"): Quota(ceiling=9)}))
    holdings.add(B, "spot", 4)
    assert holdings.room(A, "spot") == 5
    holdings.add(A, "spot", 6)
    assert holdings.room(A, "spot") == 0
    assert holdings.room(A, "reserved") is None
