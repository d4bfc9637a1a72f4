"""What differs between two policies."""

from hypothesis import given
from hypothesis import strategies as st

from muster.domain.policy.differences import Difference, differences
from muster.domain.policy.document import DEFAULT_POLICY, Policy


def test_equal_policies_differ_in_nothing() -> None:
    assert (
        differences(DEFAULT_POLICY, Policy.model_validate(DEFAULT_POLICY.model_dump(mode="json"), strict=False)) == ()
    )


def test_each_field_is_named_by_its_path_and_a_list_is_one_value() -> None:
    after = Policy.model_validate(
        {"contact": {"heartbeat_s": 5}, "health": {"cohort": {"attributes": ["model"]}}}, strict=False
    )
    found = {each.path: (each.before, each.after) for each in differences(DEFAULT_POLICY, after)}
    assert found["/contact/heartbeat_s"] == (10.0, 5.0)
    assert found["/health/cohort/attributes"][1] == ["model"]
    assert len(found) == 2


def test_what_only_one_of_them_has_is_reported_whole() -> None:
    tiers = DEFAULT_POLICY.model_dump(mode="json")["tiers"]
    spot = tiers.pop("spot")
    after = Policy.model_validate({"tiers": tiers}, strict=False)
    assert differences(DEFAULT_POLICY, after) == (Difference("/tiers/spot", spot, None),)
    assert differences(after, DEFAULT_POLICY) == (Difference("/tiers/spot", None, spot),)


@given(st.floats(min_value=1, max_value=27), st.integers(min_value=2, max_value=6))
def test_there_and_back_are_the_same_fields_turned_round(heartbeat_s: float, disjoint_sets: int) -> None:
    other = Policy.model_validate(
        {"contact": {"heartbeat_s": heartbeat_s}, "suspicion": {"disjoint_sets": disjoint_sets}}, strict=False
    )
    there = differences(DEFAULT_POLICY, other)
    assert [Difference(each.path, each.after, each.before) for each in differences(other, DEFAULT_POLICY)] == list(
        there
    )
