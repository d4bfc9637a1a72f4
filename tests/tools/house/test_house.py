"""The figures of the house: what each counts, on small examples."""

import json
from pathlib import Path

import pytest

from tools.house.docstrings import first_lines, is_fragment
from tools.house.figure import HouseFigure
from tools.house.loop import QUICK_RUNS, TEST_RUN, run_figures
from tools.house.pages import page_of
from tools.house.sizes import size_figures


def test_a_figure_without_a_record_holds_no_bar() -> None:
    assert not HouseFigure("made up", None, "s", 60).holds
    assert HouseFigure("made up", 60, "s", 60).holds
    assert HouseFigure("made up", 61, "s", 60).row()["holds"] is False


@pytest.mark.parametrize(
    "first_line",
    ["Of one process: its rows.", "``limit``: how many.", "Whether it runs.", "(UUID, slot).", "What starts there."],
)
def test_a_first_line_without_subject_or_verb_is_a_fragment(first_line: str) -> None:
    assert is_fragment(first_line)


@pytest.mark.parametrize(
    "first_line", ["Return the rows.", "The GPUs of one cohort.", "In-flight requests are counted."]
)
def test_a_whole_first_line_is_no_fragment(first_line: str) -> None:
    assert not is_fragment(first_line)


def test_each_docstring_has_its_line() -> None:
    assert list(first_lines('"""The module."""\n\n\ndef f() -> None:\n    """Return.\n\n    More.\n    """\n')) == [
        (1, "The module."),
        (5, "Return."),
    ]


def test_a_text_after_an_attribute_or_a_constant_is_a_docstring_and_another_text_is_none() -> None:
    source = (
        'LIMIT = 3\n"""Most rows."""\nprint(LIMIT)\n"""Of nothing."""\n\n\n'
        'class Row:\n    id: int\n    """Number of the row.\n\n    More.\n    """\n'
    )
    assert list(first_lines(source)) == [(2, "Most rows."), (9, "Number of the row.")]


def test_a_page_has_its_headings_paragraphs_and_long_sentences() -> None:
    long = "word " * 36
    page = page_of(
        "# One two\n\nFirst line\nsecond line.\n\n```sh\nnot a word\n```\n"
        f"- item [three](four.md)\n| a | b |\n\n{long}.\n"
    )
    assert page.headings == ("One two",)
    assert page.paragraphs == ("First line second line.", "- item [three](four.md)", "| a | b |", f"{long}.".strip())
    assert (page.num_words, page.longest_paragraph, len(page.long_sentences)) == (2 + 4 + 2 + 2 + 36, 36, 1)


def test_shares_folders_and_functions_are_counted_without_tests() -> None:
    sources = {
        "muster/a.py": "def f() -> None:\n    pass\n" * 3,
        "muster/b.py": "x = 1\n",
        "health/__init__.py": "",
        "health/c.py": "x = 1\n" * 3,
        "tools/d.py": "x = 1\n" * 10,
    }
    figures = {figure.name: figure.value for figure in size_figures(sources)}
    assert figures["muster/ of the source"] == 35.0
    assert figures["the largest other package (tools/)"] == 50.0
    assert figures["files of the largest folder of logic"] == 2
    assert figures["lines of a function, median"] == 2


def test_only_a_whole_run_that_passed_is_the_time_of_make_test(tmp_path: Path) -> None:
    record = tmp_path / TEST_RUN
    record.parent.mkdir(parents=True)
    values = []
    for change in ({}, {"exit_status": 1}, {"asks_for_all": False}):
        record.write_text(json.dumps({"wall_s": 700.5, "exit_status": 0, "asks_for_all": True} | change))
        values.append(run_figures(tmp_path)[0].value)
    assert values == [700.5, None, None]


def test_a_quick_run_counts_by_the_name_of_its_change(tmp_path: Path) -> None:
    (tmp_path / QUICK_RUNS).parent.mkdir()
    (tmp_path / QUICK_RUNS).write_text(json.dumps({"detector": {"wall_s": 41.0, "exit_status": 0}}))
    values = {figure.name: figure.value for figure in run_figures(tmp_path)}
    assert values["make quick: detector"] == 41.0
    assert values["make quick: checkpoint"] is None
