"""Output of ``dcgmi diag -j``: each test on each entity, DCGM's numbers as text, and half a document refused."""

import json
from typing import Any

import pytest

from agents.dcgm.diagnosis import CATEGORIES, SEVERITIES, DiagnosisError, parse_diagnosis

FAILED: dict[str, Any] = {
    "entity_group": "GPU",
    "entity_group_id": 1,
    "entity_id": 1,
    "status": "Fail",
    "warnings": [{"warning": "row remap failure", "error_id": 80, "error_category": 10, "error_severity": 2}],
}
PASSED: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"}


def document(*results: dict[str, Any], **diagnostic: Any) -> dict[str, Any]:
    test = {"name": "memory", "results": list(results), "test_summary": {"status": "Fail"}}
    entity = {"entity_id": 1, "device_id": "2330", "serial_num": "1652922000045"}
    return {
        "DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [test]}], **diagnostic},
        "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": [entity]}],
        "metadata": {"version": "4.2.3", "Driver Version Detected": "570.86.15"},
    }


def test_each_test_on_each_gpu_is_a_result() -> None:
    found = parse_diagnosis(json.dumps(document(PASSED, FAILED)))
    assert (found.version, found.driver, found.fault, found.has_failed) == ("4.2.3", "570.86.15", None, True)
    good, bad = found.results
    assert (good.test, good.category, good.status, good.entity_id, good.serial) == (
        "memory",
        "Hardware",
        "pass",
        0,
        None,
    )
    assert (bad.status, bad.entity_id, bad.serial, bad.device_id) == ("fail", 1, "1652922000045", "2330")
    (warned,) = bad.warnings
    assert (warned.text, warned.error_id, warned.severity, warned.category) == (
        "row remap failure",
        80,
        "isolate",
        "memory",
    )


def test_what_passed_or_was_skipped_has_not_failed() -> None:
    found = parse_diagnosis(json.dumps(document(PASSED, {**PASSED, "status": "Skip"}, {**PASSED, "status": "Warn"})))
    assert [each.status for each in found.results] == ["pass", "skip", "warn"]
    assert not found.has_failed


def test_a_status_that_is_unknown_is_no_pass() -> None:
    found = parse_diagnosis(json.dumps(document({**PASSED, "status": "Perhaps"})))
    assert (found.results[0].status, found.has_failed) == ("unknown", True)


def test_a_run_that_did_not_finish_has_failed() -> None:
    broken = {"DCGM Diagnostic": {"runtime_error": "the host engine went away"}}
    found = parse_diagnosis(json.dumps(broken))
    assert (found.fault, found.results, found.has_failed) == ("the host engine went away", (), True)


def test_the_form_of_dcgm_3_is_read_too() -> None:
    old = {
        "DCGM GPU Diagnostic": {
            "test_categories": [
                {
                    "category": "Integration",
                    "tests": [
                        {
                            "name": "PCIe",
                            "results": [
                                {"gpu_id": "0", "status": "PASS"},
                                {"gpu_id": "1", "status": "FAIL", "warnings": "bandwidth too low"},
                            ],
                        }
                    ],
                }
            ],
            "version": "3.3.8",
        }
    }
    found = parse_diagnosis(json.dumps(old))
    assert [(each.entity_id, each.status) for each in found.results] == [(0, "pass"), (1, "fail")]
    assert found.results[1].warnings[0].text == "bandwidth too low"
    assert found.version == "3.3.8"


def test_words_before_the_json_are_passed_over() -> None:
    text = "Warning: the host engine is older.\n" + json.dumps(document(PASSED), indent=2) + "\n"
    assert len(parse_diagnosis(text).results) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("Error: unable to establish a connection to the specified host", "no JSON"),
        (json.dumps(document(FAILED))[:200], "ends or breaks at line 1"),
        ('{"a": 1}', "no object 'DCGM Diagnostic'"),
        ('{"DCGM Diagnostic": []}', "no object 'DCGM Diagnostic'"),
        ('{"DCGM Diagnostic": {}}', "no result of any test"),
        ('{"DCGM Diagnostic": {"test_categories": 7}}', "test_categories: a list of objects is expected"),
        ('{"DCGM Diagnostic": {"test_categories": [{"tests": [{"results": []}]}]}}', "tests[0].name"),
        (json.dumps(document({"entity_id": 0})), "needs a status"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"a": ' + "7" * 5000 + "}", "thousands of digits"),
    ],
)
def test_what_is_no_diagnosis_is_refused_with_the_place(text: str, words: str) -> None:
    with pytest.raises(DiagnosisError, match=words.replace("[", r"\[").replace("]", r"\]")):
        parse_diagnosis(text)


def test_a_number_of_thousands_of_digits_is_none() -> None:
    assert parse_diagnosis(json.dumps(document({**PASSED, "entity_id": "7" * 5000}))).results[0].entity_id is None


def test_all_of_dcgms_numbers_have_words() -> None:
    assert list(SEVERITIES) == list(range(7))
    assert list(CATEGORIES) == list(range(17))
    odd = {**FAILED, "warnings": [{"warning": "w", "error_id": 1, "error_category": 99, "error_severity": 42}]}
    (warned,) = parse_diagnosis(json.dumps(document(odd))).results[0].warnings
    assert (warned.severity, warned.category) == ("unknown (42)", "unknown (99)")
