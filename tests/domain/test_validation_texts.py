"""The report of a wrong field: what is accepted, and the key that was most likely meant."""

from typing import Any

import pytest
from pydantic import Field

from muster.domain.errors import ValidationFailedError
from muster.domain.policy.document import Policy
from muster.domain.strict import Name, Printable, StrictModel
from muster.domain.validation import validated

FRACTION = "must be a fraction from 0 to 1, such as 0.05"


def reported(document: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationFailedError) as refused:
        validated(Policy, document)
    return {fault.pointer: fault.detail for fault in refused.value.faults}


@pytest.mark.parametrize("odd", ["5%", 1.2, 120, -0.1, "a tenth", []])
def test_a_share_is_a_fraction(odd: object) -> None:
    assert reported({"health": {"breaker": {"fleet_share": odd}}}) == {"/health/breaker/fleet_share": FRACTION}


def test_an_unknown_key_is_reported_with_the_nearest_one() -> None:
    assert reported({"health": {"breaker": {"fleet_shar": 0.1}, "detector": {}}, "tires": {}}) == {
        "/health/breaker/fleet_shar": "there is no such key; did you mean fleet_share?",
        "/health/detector": "there is no such key; did you mean detectors?",
        "/tires": "there is no such key; did you mean tiers?",
    }
    assert reported({"health": {"evidence": {"zzz": 1}}})["/health/evidence/zzz"].startswith("there is no such key")
    assert reported({"health": {"detectors": {"xid": {"zzz": 1}}}}) == {
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
def test_a_number_is_reported_by_its_bounds(field: str, odd: object, words: str) -> None:
    ((_, told),) = reported({"health": {"burn_in": {field: odd}}}).items()
    assert told == words


def test_one_of_few_words_is_reported_with_all_of_them() -> None:
    assert reported({"watch": {"on_hang": "ignore"}}) == {"/watch/on_hang": "must be 'restart', 'hold' or 'notify'"}


def test_a_tiers_field_is_found_under_its_name() -> None:
    found = reported({"tiers": {"spot": {"prioriti": 1}}})
    assert any("did you mean priority?" in words for words in found.values()), found


class Named(StrictModel):
    names: tuple[Name, ...] = Field(default=(), min_length=1, max_length=2)
    short: str = Field(default="", max_length=3)
    word: Printable = "x"
    weight: float = Field(default=1.0, le=1_000_000)
    OTHER_KEYS = ("title",)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"names": []}, "must have at least 1 item"),
        ({"names": ["a", "b", "c"]}, "must have at most 2 items"),
        ({"short": "abcd"}, "must have at most 3 characters"),
        ({"word": ""}, "must have at least 1 character"),
        ({"word": "a\x1b[2J"}, "must be printable characters in one line; it has U+001B"),
        ({"word": "a\u202eb"}, "must be printable characters in one line; it has U+202E"),
        ({"weight": 10_000_000}, "must be at most 1,000,000"),
        ({"titel": "x"}, "there is no such key; did you mean title?"),
        ({"zzz": "x"}, "there is no such key; there are names, short, word, weight, title"),
    ],
)
def test_lengths_marks_and_other_words_for_a_field_are_reported(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationFailedError) as refused:
        validated(Named, document)
    (fault,) = refused.value.faults
    assert fault.detail == words


def test_a_list_with_a_wrong_item_is_not_called_empty_next_to_it() -> None:
    with pytest.raises(ValidationFailedError) as refused:
        validated(Named, {"names": ["A"]})
    assert [fault.pointer for fault in refused.value.faults] == ["/names/0"]
