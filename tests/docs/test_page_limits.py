"""The pages are short enough to be read: size, words a heading, words a paragraph, long sentences."""

import json
from pathlib import Path

from tools.page_limits import LONG_SENTENCES, ROOT, STORED, exceeded, lower, measured


def test_no_page_exceeds_its_limits_or_the_numbers_that_are_stored_for_it() -> None:
    assert exceeded(ROOT) == []


def test_a_page_without_stored_numbers_must_meet_the_limits(tmp_path: Path) -> None:
    _write(tmp_path, "README.md", "# Title\n\n" + "word " * 1700)
    assert exceeded(tmp_path) == [
        "long sentences of all pages: 1, at most 0",
        "README.md: words a heading: 1701, at most 200",
        "README.md: words of the longest paragraph: 1700, at most 120",
        "README.md: bytes: 8509, at most 8000",
    ]


def test_stored_numbers_only_fall_and_go_with_their_reason(tmp_path: Path) -> None:
    _write(tmp_path, STORED, "")
    (tmp_path / STORED).unlink()
    _write(tmp_path, "docs/a.md", "# Title\n\n" + "word " * 150)
    lower(tmp_path)
    assert json.loads((tmp_path / STORED).read_text()) == {
        LONG_SENTENCES: 1,
        "docs/a.md: words of the longest paragraph": 150,
    }
    _write(tmp_path, "docs/a.md", "# Title\n\n" + "word " * 160)
    lower(tmp_path)
    assert exceeded(tmp_path) == ["docs/a.md: words of the longest paragraph: 160, at most 150"]
    _write(tmp_path, "docs/a.md", "# Title\n\nShort.")
    lower(tmp_path)
    assert json.loads((tmp_path / STORED).read_text()) == {}


def test_a_page_of_the_internals_has_a_size(tmp_path: Path) -> None:
    _write(tmp_path, "docs/internals/scheduler.md", "# Title\n")
    numbers, limits = measured(tmp_path)
    assert (numbers["docs/internals/scheduler.md: bytes"], limits["docs/internals/scheduler.md: bytes"]) == (8, 12_000)


def _write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
