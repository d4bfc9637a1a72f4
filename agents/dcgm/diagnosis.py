"""The results of ``dcgmi diag -r N -j``, a row a test and entity, with DCGM's numbers as text.

Of DCGM 4 (``DCGM Diagnostic``, results by entity) and of 3 (``DCGM GPU Diagnostic``, results by GPU). Text before the
JSON, such as a warning of the client's, is skipped; truncated JSON, or JSON of another shape, is refused with the
place.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

DIAGNOSIS_ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
SEVERITIES: Final[Mapping[int, str]] = {
    0: "none",
    1: "monitor",
    2: "isolate",
    3: "unknown",
    4: "triage",
    5: "configuration",
    6: "reset",
}
CATEGORIES: Final[Mapping[int, str]] = {
    0: "none",
    1: "performance threshold",
    2: "performance violation",
    **dict.fromkeys(range(3, 9), "software"),
    9: "thermal",
    10: "memory",
    11: "NVLink",
    12: "NVSwitch",
    13: "PCIe",
    14: "power",
    15: "other",
    16: "internal",
}
_MOST_DIGITS: Final = 18
STATUSES: Final[Mapping[str, str]] = {
    "pass": "pass",
    "fail": "fail",
    "warn": "warn",
    "skip": "skip",
    "not run": "skip",
    "notrun": "skip",
}


class DiagnosisError(Exception):
    """The text is no result of dcgmi. The message names the place and the expected content."""


@dataclass(frozen=True, slots=True)
class Warned:
    """One warning of a test. ``severity``: DCGM's advice as text; None where it gives none."""

    text: str
    error_id: int | None = None
    severity: str | None = None
    category: str | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test on one entity. ``status``: pass, warn, fail, skip, or unknown for a word that we do not know."""

    __test__ = False  # for pytest: it is none of our own tests
    test: str
    category: str
    status: str
    entity_group: str
    entity_id: int | None
    serial: str | None = None
    device_id: str | None = None
    warnings: tuple[Warned, ...] = ()

    def as_document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A whole diagnosis. ``fault``: why dcgmi itself did not finish; then missing tests did not run."""

    version: str | None
    driver: str | None
    results: tuple[TestResult, ...]
    fault: str | None = None

    @property
    def has_failed(self) -> bool:
        """A test failed, could not be understood, or dcgmi did not finish."""
        return self.fault is not None or any(each.status in {"fail", "unknown"} for each in self.results)


def parse_diagnosis(text: str) -> Diagnosis:
    """Return the diagnosis. Raises DiagnosisError."""
    document = _document(text)
    root = next((name for name in DIAGNOSIS_ROOTS if isinstance(document.get(name), dict)), None)
    if root is None:
        raise DiagnosisError(
            f"there is no object {DIAGNOSIS_ROOTS[0]!r}; the input has to be the output of `dcgmi diag -r 1 -j`"
        )
    diagnostic = document[root]
    entities = _entities(document.get("entity_groups"))
    results = tuple(_results(diagnostic, entities))
    fault = diagnostic.get("runtime_error") or document.get("runtime_error")
    if not results and not fault:
        raise DiagnosisError(f"{root!r} holds no result of any test")
    metadata = document.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    version = told.get("version") or diagnostic.get("version")
    driver = told.get("Driver Version Detected") or diagnostic.get("Driver Version Detected")
    return Diagnosis(_text(version), _text(driver), results, _text(fault))


def _document(text: str) -> dict[str, Any]:
    begin = text.find("{")
    if begin < 0:
        raise DiagnosisError("there is no JSON in it; was `-j` left out?")
    try:
        document, _ = json.JSONDecoder().raw_decode(text, begin)
    except json.JSONDecodeError as error:
        raise DiagnosisError(
            f"the JSON ends or breaks at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (RecursionError, ValueError):
        raise DiagnosisError("the JSON is nested too deeply, or holds a number of thousands of digits") from None
    if not isinstance(document, dict):
        raise DiagnosisError("the JSON is no object")
    return document


def _results(diagnostic: dict[str, Any], entities: Mapping[tuple[str, int], dict[str, Any]]) -> Iterator[TestResult]:
    for at, category in enumerate(_objects(diagnostic.get("test_categories", []), "test_categories")):
        where = f"test_categories[{at}]"
        name = _text(category.get("category")) or ""
        for number, test in enumerate(_objects(category.get("tests", []), f"{where}.tests")):
            place = f"{where}.tests[{number}]"
            title = _text(test.get("name"))
            if title is None:
                raise DiagnosisError(f"{place}.name: a test needs one")
            for result in _objects(test.get("results", []), f"{place}.results"):
                yield _result(result, title, name, entities, place)


def _result(
    result: dict[str, Any],
    title: str,
    category: str,
    entities: Mapping[tuple[str, int], dict[str, Any]],
    place: str,
) -> TestResult:
    status = _text(result.get("status"))
    if status is None:
        raise DiagnosisError(f"{place}.results: a result needs a status")
    group = _text(result.get("entity_group")) or "GPU"
    entity_id = _whole(result.get("entity_id", result.get("gpu_id", result.get("gpu_ids"))))
    known = entities.get((group, entity_id), {}) if entity_id is not None else {}
    return TestResult(
        test=title,
        category=category,
        status=STATUSES.get(status.strip().lower(), "unknown"),
        entity_group=group,
        entity_id=entity_id,
        serial=_text(known.get("serial_num")),
        device_id=_text(known.get("device_id")),
        warnings=tuple(_warnings(result.get("warnings"))),
    )


def _warnings(reported: object) -> Iterator[Warned]:
    """Yield the warnings.

    They are a list of objects in DCGM 4, of objects or texts in 3, where one text may stand for the list.
    """
    for each in reported if isinstance(reported, list) else [reported]:
        if isinstance(each, str) and each.strip():
            yield Warned(each.strip())
        elif isinstance(each, dict):
            severity, category = _whole(each.get("error_severity")), _whole(each.get("error_category"))
            yield Warned(
                _text(each.get("warning")) or "",
                _whole(each.get("error_id")),
                None if severity is None else SEVERITIES.get(severity, f"unknown ({severity})"),
                None if category is None else CATEGORIES.get(category, f"unknown ({category})"),
            )


def _entities(groups: object) -> dict[tuple[str, int], dict[str, Any]]:
    """Return (group, entity) → its attributes. A malformed group is ignored."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for group in groups if isinstance(groups, list) else []:
        entities = group.get("entities") if isinstance(group, dict) else None
        for entity in entities if isinstance(entities, list) else []:
            if isinstance(entity, dict) and isinstance(entity.get("entity_id"), int):
                found[str(group.get("entity_group")), entity["entity_id"]] = entity
    return found


def _objects(value: object, place: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise DiagnosisError(f"{place}: a list of objects is expected")
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdecimal() and len(value) <= _MOST_DIGITS else None
    return value if isinstance(value, int) else None
