"""What is said of a wrong field: what is accepted, and the key that was most likely meant."""

from typing import Any

import pytest

from api.validating import validated
from muster.domain.errors import ValidationFailedError
from muster.domain.policy import Policy

FRACTION = "must be a fraction from 0 to 1, such as 0.05"


def said(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationFailedError) as refused:
        validated(Policy, document)
    return {fault.pointer: fault.detail for fault in refused.value.faults}


@pytest.mark.parametrize("odd", ["5%", 1.2, 120, -0.1, "a tenth", []])
def test_a_share_is_a_fraction(odd: object) -> None:
    assert said({"health": {"breaker": {"fleet_share": odd}}}) == {"/health/breaker/fleet_share": FRACTION}


def test_an_unknown_key_is_told_with_the_nearest_one() -> None:
    assert said({"health": {"breaker": {"fleet_shar": 0.1}, "detector": {}}, "tires": {}}) == {
        "/health/breaker/fleet_shar": "there is no such key; did you mean fleet_share?",
        "/health/detector": "there is no such key; did you mean detectors?",
        "/tires": "there is no such key; did you mean tiers?",
    }
    assert said({"health": {"evidence": {"zzz": 1}}})["/health/evidence/zzz"].startswith("there is no such key")
    assert said({"health": {"detectors": {"xid": {"zzz": 1}}}}) == {
        "/health/detectors/xid/zzz": "there is no such key; there are mode"
    }


@pytest.mark.parametrize(
    ("field", "odd", "words"),
    [
        ("deadline_s", "15m", "must be a number, without a unit or quotes"),
        ("deadline_s", 0, "must be more than 0"),
        ("tries_max", 0, "must be at least 1"),
        ("tries_max", 101, "must be at most 100"),
        ("tries_max", "3", "must be a whole number"),
        ("least_rates", {"copy_to_host_gb_per_s": 0}, "must be more than 0"),
    ],
)
def test_a_number_is_told_by_its_bounds(field: str, odd: object, words: str) -> None:
    ((_, told),) = said({"health": {"burn_in": {field: odd}}}).items()
    assert told == words


def test_a_tiers_field_is_found_under_its_name() -> None:
    found = said({"tiers": {"spot": {"prioriti": 1}}})
    assert any("did you mean priority?" in words for words in found.values()), found
