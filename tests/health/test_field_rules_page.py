"""docs/field-rules.md: each rule of the field has its test, which is there, or says why it has none."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from health.detectors.registry import RULES
from tests.docs.test_fault_tables import missing
from tests.health.test_rules_of_the_field import TABLE

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "field-rules.md"
_WORD: Final = re.compile(r"`([^`]+)`")
_NOT_OURS: Final = {"dcgmi diag"}


@dataclass(frozen=True)
class Row:
    rule: str
    detectors: tuple[str, ...]
    test: str

    @property
    def named(self) -> tuple[str, ...]:
        return tuple(_WORD.findall(self.test))

    @property
    def of_the_table(self) -> set[str]:
        return {name for name in self.named if ".py" not in name and ".txt" not in name}


def rows(page: str) -> Iterator[Row]:
    for line in page.partition("## What breaks")[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and cells[0] != "rule":
            rule, _, detectors, test = cells
            yield Row(rule, tuple(_WORD.findall(detectors)), test)


ROWS: Final = tuple(rows(PAGE.read_text(encoding="utf-8")))


def test_each_test_that_is_named_is_there() -> None:
    assert missing(PAGE.read_text(encoding="utf-8")) == []
    assert set().union(*(row.of_the_table for row in ROWS)) - set(TABLE) == set()
    assert len(ROWS) > 100, "the tables are read"


def test_each_situation_that_is_tried_is_a_rule_of_the_page() -> None:
    assert set(TABLE) - set().union(*(row.of_the_table for row in ROWS)) == set()


def test_each_detector_has_a_row_and_none_is_named_that_is_not_there() -> None:
    named = {name for row in ROWS for name in row.detectors} - _NOT_OURS
    assert named == {rule.name for rule in RULES}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.rule)
def test_each_rule_has_a_test_or_a_reason_for_none(row: Row) -> None:
    assert row.named or re.match(r"not( our own rule)?: \w.{20}", row.test), "it says why"


@pytest.mark.parametrize("row", [row for row in ROWS if row.of_the_table], ids=lambda row: row.rule)
def test_what_a_rule_names_is_tried_by_its_detector(row: Row) -> None:
    assert {TABLE[name].detector for name in row.of_the_table} <= set(row.detectors)
