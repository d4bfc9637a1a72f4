"""A row of CSV: each cell is read back as it was, and no text of others becomes a formula."""

import csv
from typing import Any

import pytest

from muster.documents.csv_lines import line_of


@pytest.mark.parametrize("value", ["plain", 'a "b", c', "two\nlines", "two\rlines", "-12.5", "-3", ""])
def test_a_text_is_read_back_as_it_was(value: str) -> None:
    assert list(csv.reader([*line_of(["x", value, "y"]).splitlines(keepends=True)])) == [["x", value, "y"]]


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1+cmd", "-x", "-1.", "@sum", "\tx", "\rx"])
def test_a_formula_gets_an_apostrophe(value: str) -> None:
    [row] = csv.reader([*line_of([value, 1]).splitlines(keepends=True)])
    assert row == [f"'{value}", "1"]


@pytest.mark.parametrize(("value", "cell"), [(None, ""), (-1.5, "-1.5"), (True, "True"), (0, "0")])
def test_what_is_no_text_is_written_as_python_writes_it(value: Any, cell: str) -> None:
    assert line_of([value, "end"]) == f"{cell},end"
