"""Cohorts: equal attributes, equal key; and fingerprints within tolerance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from health.cohort.cohorts import (
    Attribute,
    agreed_of,
    cohort_key,
    may_be_mixed,
    part_of_key,
    presumed,
)
from muster.domain.gpu.cohort_attributes import LINKS
from muster.domain.policy.health import CohortPolicy

POLICY = CohortPolicy(attributes=("model", "driver_version"))
TEXTS = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["-", "%2D", "a|b", "a=b", ""]))
PAIRS = st.fixed_dictionaries({"model": TEXTS, "driver_version": TEXTS})


def test_a_key_reads_as_its_attributes() -> None:
    key = cohort_key({"driver_version": "580.65.06", "model": "NVIDIA H100 80GB HBM3", "power_limit_w": 700}, POLICY)
    assert key == "driver_version=580.65.06|model=NVIDIA H100 80GB HBM3"


def test_the_order_of_the_policys_names_changes_no_key() -> None:
    turned = CohortPolicy(attributes=("driver_version", "model"))
    attributes: dict[str, Attribute] = {"model": "H100", "driver_version": "580"}
    assert cohort_key(attributes, POLICY) == cohort_key(attributes, turned)


@given(PAIRS, PAIRS)
def test_keys_are_equal_exactly_when_the_attributes_are(one: dict[str, Attribute], other: dict[str, Attribute]) -> None:
    assert (cohort_key(one, POLICY) == cohort_key(other, POLICY)) == (one == other)


def test_what_one_does_not_report_is_presumed_only_where_all_others_of_its_model_agree() -> None:
    told: list[tuple[str, dict[str, Attribute], int]] = [
        ("H100", {"vbios_version": "96.01", "cuda_version": "12.8"}, 99),
        ("H100", {"vbios_version": "96.02", "cuda_version": "12.8", "network": None}, 1),
        ("A100", {"vbios_version": "92.00"}, 1),
        ("L40", {}, 1),
    ]
    agreed = agreed_of(told)
    assert agreed == {"H100": {"cuda_version": "12.8"}, "A100": {"vbios_version": "92.00"}, "L40": {}}
    silent: dict[str, Attribute] = {"model": "H100", "cuda_version": None}
    assert presumed(silent, agreed["H100"]) == {"model": "H100", "cuda_version": "12.8"}
    assert presumed({"cuda_version": "13.0"}, agreed["H100"]) == {"cuda_version": "13.0"}, "its own report counts"


@pytest.mark.parametrize("name", LINKS)
def test_a_link_that_one_does_not_report_is_presumed_as_most_have_it(name: str) -> None:
    told: list[tuple[str, dict[str, Attribute], int]] = [("H100", {name: "b"}, 2), ("H100", {name: "a"}, 3)]
    assert agreed_of(told) == {"H100": {name: "a"}}
    assert agreed_of([*told, ("H100", {name: "b"}, 1)]) == {"H100": {name: "a"}}, "of equal numbers the first as a text"
    assert agreed_of([*told, ("H100", {name: "b"}, 2)]) == {"H100": {name: "b"}}


def test_by_default_gpus_with_other_links_are_in_other_cohorts() -> None:
    base: dict[str, Attribute] = {"model": "H100", **dict.fromkeys(LINKS, "1")}
    keys = {cohort_key({**base, name: "2"}, CohortPolicy()) for name in LINKS} | {cohort_key(base, CohortPolicy())}
    assert len(keys) == len(LINKS) + 1
    network: dict[str, Attribute] = {**base, "network": "7 × 400 Gb/s InfiniBand"}
    assert cohort_key(network, CohortPolicy()) == cohort_key(base, CohortPolicy()), "a port that is down splits nothing"


def test_a_tier_may_request_less_than_cohorts_are_distinguished_by() -> None:
    keys = [
        cohort_key({"model": "H100", "driver_version": driver}, POLICY) for driver in ("570", "580", "A|model=B100")
    ]
    assert may_be_mixed(keys, {"model"})
    assert not may_be_mixed(keys[:2], {"model", "driver_version"})
    assert not may_be_mixed(keys[:2], None)
    assert may_be_mixed(keys[:1], None)
    assert part_of_key(keys[0], {"driver_version"}) == "driver_version=570"
    assert not may_be_mixed([], {"model"})


def test_an_attribute_that_nothing_is_known_of_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="nothing is known of nvlinks; accepted are model, memory_bytes"):
        CohortPolicy(attributes=("model", "nvlinks"))
