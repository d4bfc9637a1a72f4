"""Tables: 80 columns, whole ids, nothing that steers a terminal."""

import pytest

from muster.cli.framework import tables
from muster.cli.framework.output import Format, Listing
from muster.cli.framework.tables import Column

JOB = "job_01m7yvc10031529q2cqqjreg4q"
REASON = "its links are down and the cause is unknown since the last time that an engineer checked it"
ROWS = [{"id": JOB, "name": "a-name-as-long-as-any-may-be-" * 2, "why": REASON, "state": "QUARANTINED"}]
COLUMNS = (
    Column("JOB", lambda row: row["id"]),
    Column("NAME", lambda row: row["name"], is_text=True),
    Column("STATE", lambda row: row["state"]),
    Column("WHY", lambda row: row["why"], is_text=True),
    Column("AGAIN", lambda row: row["why"], only_wide=True),
)


@pytest.fixture(autouse=True)
def _eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def lines(*, is_wide: bool = False) -> list[str]:
    return list(Listing(ROWS, COLUMNS, "none").lines(Format(is_wide=is_wide)))


def test_a_table_fits_80_columns_by_folding_free_text_alone() -> None:
    found = lines()
    assert max(len(line) for line in found) <= 80
    assert found[1].startswith(JOB)
    assert "QUARANTINED" in found[1]
    words = " ".join(line[-17:].strip() for line in found[1:])
    assert all(word in " ".join(found) for word in REASON.split()), words


def test_wide_has_every_column_on_one_line_a_row() -> None:
    header, row = lines(is_wide=True)
    assert "AGAIN" in header
    assert row.count(REASON) == 2


def test_an_id_is_whole_even_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    assert any(JOB in line for line in lines())


def test_words_of_others_steer_no_terminal() -> None:
    assert tables.printable("a\x1b[31mred\nand\x07on") == "a\ufffd[31mred and\ufffdon"


def test_nothing_is_coloured_where_none_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert any("\x1b[31mQUARANTINED" in line for line in lines())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not any("\x1b" in line for line in lines())


def test_ids_in_a_paragraph_are_never_broken() -> None:
    said = list(
        tables.paragraphs([f"  held by {JOB} and by no other job, as far as is known, since yesterday"], is_wide=False)
    )
    assert max(len(line) for line in said) <= 80
    assert any(JOB in line for line in said)
    assert said[1].startswith("    "), "the rest stands under its own indent"
