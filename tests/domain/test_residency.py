"""A residency rule: what it permits, alone and together with the rules of departments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.residency import ANY, Residency, StorePlace, read_residency, residency_of

AMS = frozenset({"ams"})
NAMES = st.none() | st.frozensets(st.sampled_from(["ams", "fra", "s3://a", "s3://b"]))
RULES = st.builds(Residency, NAMES, NAMES)


@pytest.mark.parametrize(
    ("permitted", "location", "is_permitted"),
    [
        ("s3://acme-ams", "s3://acme-ams", True),
        ("s3://acme-ams", "s3://acme-ams/runs/", True),
        ("s3://acme-ams/", "s3://acme-ams", True),
        ("s3://acme-ams", "s3://acme-ams-2/runs", False),
        ("s3://acme-ams/runs", "s3://acme-ams/runs-old", False),
        ("s3://acme-ams/runs", "s3://acme-ams", False),
        ("main", "s3://main", False),
    ],
)
def test_checkpoints_are_permitted_below_a_named_prefix_alone(
    permitted: str, location: str, *, is_permitted: bool
) -> None:
    refusal = Residency(stores=frozenset({permitted})).checkpoint_refusal(location)
    assert (refusal is None) is is_permitted
    assert ANY.checkpoint_refusal(location) is None
    assert Residency(sites=AMS).checkpoint_refusal(location) is not None, "its site is not known"


@pytest.mark.parametrize(
    ("rule", "store", "is_permitted"),
    [
        (ANY, None, True),
        (ANY, StorePlace("main"), True),
        (Residency(sites=AMS), StorePlace("main", "ams"), True),
        (Residency(sites=AMS), StorePlace("main", "fra"), False),
        (Residency(sites=AMS), StorePlace("main"), False),
        (Residency(sites=AMS), None, False),
        (Residency(AMS, frozenset({"main"})), StorePlace("main", "fra"), True),
        (Residency(AMS, frozenset({"other"})), StorePlace("main", "ams"), False),
    ],
)
def test_content_is_permitted_in_a_named_store_else_in_one_at_a_permitted_site(
    rule: Residency, store: StorePlace | None, *, is_permitted: bool
) -> None:
    assert (rule.content_refusal(store) is None) is is_permitted


@given(st.lists(RULES, max_size=4), st.sampled_from(["ams", "fra", None]))
def test_rules_together_permit_a_host_that_each_permits_and_no_other(rules: list[Residency], site: str | None) -> None:
    labels = {} if site is None else {"site": site}
    assert residency_of(rules).has_site(labels) is all(rule.has_site(labels) for rule in rules)


@given(RULES)
def test_a_rule_is_read_as_it_was_stored(rule: Residency) -> None:
    assert read_residency(rule.document()) == rule
