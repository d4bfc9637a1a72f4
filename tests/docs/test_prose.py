"""The pages are short: few words under each heading and in each paragraph, and hardly a long sentence."""

from pathlib import Path

import pytest

from tests.docs.pages import DOCS, PAGES, ROOT, name_of
from tests.docs.prose import faults_of, long_sentences_of, sections_of, sentences_of, words_of

BYTES_MAX = {"README.md": 8_000, "ARCHITECTURE.md": 20_000, "docs/internals": 12_000}
ARCHITECTURE_WORDS_MAX = 3_200
NOT_WRITTEN = {"docs/reference"}
"""Folders of generated pages: their words are in the code."""
LONG_SENTENCES_MAX = 0
"""On each page. Raise it for no page: a long sentence is two."""


def is_held(page: Path) -> bool:
    return not any(name_of(page).startswith(folder) for folder in NOT_WRITTEN)


HELD = [page for page in PAGES if is_held(page)]


@pytest.mark.parametrize("page", HELD, ids=name_of)
def test_a_heading_and_a_paragraph_are_short(page: Path) -> None:
    assert faults_of(page) == []


@pytest.mark.parametrize("page", HELD, ids=name_of)
def test_a_sentence_is_short(page: Path) -> None:
    assert len(long_sentences_of(page)) <= LONG_SENTENCES_MAX, "\n".join(long_sentences_of(page))


@pytest.mark.parametrize("page", [page for page in PAGES if name_of(page) in BYTES_MAX], ids=name_of)
def test_the_first_pages_are_small(page: Path) -> None:
    assert page.stat().st_size <= BYTES_MAX[name_of(page)]


@pytest.mark.parametrize("page", sorted((DOCS / "internals").glob("*.md")), ids=name_of)
def test_a_page_of_a_package_is_small(page: Path) -> None:
    assert page.stat().st_size <= BYTES_MAX["docs/internals"]


def test_the_architecture_is_read_in_a_quarter_of_an_hour() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").split()) <= ARCHITECTURE_WORDS_MAX


def test_code_and_tables_are_no_prose() -> None:
    text = "# Title\n\nTwo words.\n\n```sh\nmany more words here\n```\n\n| a | table |\n|---|---|\n"
    assert [(section.title, section.num_words) for section in sections_of(text)] == [("", 0), ("Title", 2)]


def test_each_item_of_a_list_is_a_paragraph() -> None:
    (_, section) = sections_of("# Title\n\n- one two\n- three\n1. four\n")
    assert [words_of(paragraph) for paragraph in section.paragraphs] == [2, 1, 1]


def test_a_link_counts_by_its_label() -> None:
    assert words_of("see [the page](docs/a-page.md) now") == 4


def test_a_sentence_ends_at_its_stop_and_not_within_a_name() -> None:
    assert len(sentences_of("It runs `a.py` at 0.2 s. Then it ends: nothing is left.")) == 3


def test_a_long_paragraph_and_a_long_sentence_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n" + "word " * 121 + ".\n")
    assert len(faults_of(page)) == 1
    assert len(long_sentences_of(page)) == 1
