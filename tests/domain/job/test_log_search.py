"""Lines that hold a text are found wherever the pieces of a log end."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.domain.job.log_search import LONGEST_LINE_BYTES, SHOWN_BYTES, FoundLine, LineSearch, Sought


def found_in(pieces: Sequence[bytes], text: str, *, ignores_case: bool = False, start: int = 0) -> list[FoundLine]:
    search = LineSearch(Sought(text, ignores_case), start)
    found: list[FoundLine] = []
    offset = start
    for piece in pieces:
        found += search.feed(offset, piece)
        offset += len(piece)
    return [*found, *search.end()]


@given(st.lists(st.sampled_from(["loss 1.5", "NaN here", "", "step nan", "é NAN"])), st.lists(st.integers(1, 9)))
def test_it_finds_what_splitting_the_whole_would_find(lines: list[str], cuts: list[int]) -> None:
    whole = "\n".join(lines).encode()
    pieces, at = [], 0
    for cut in cuts:
        pieces.append(whole[at : at + cut])
        at += cut
    pieces.append(whole[at:])
    for text, ignores_case in (("nan", False), ("nan", True), ("É", True)):
        fold = str.casefold if ignores_case else str
        wanted = [line.encode() for line in lines if fold(text) in fold(line)]
        found = found_in(pieces, text, ignores_case=ignores_case)
        assert [one.text for one in found] == wanted
        assert all(whole[one.offset :].startswith(one.text) for one in found)


def test_a_search_that_stopped_behind_a_line_goes_on_there() -> None:
    whole = b"nan 1\nx\nnan 2\nnan 3"
    first, second, third = found_in([whole], "nan")
    assert found_in([whole[first.end :]], "nan", start=first.end) == [second, third]


def test_dropped_bytes_end_a_line() -> None:
    search = LineSearch(Sought("ab"))
    assert [*search.feed(0, b"xa")] == []
    assert [*search.feed(100, b"b\n")] == [], "the two stood far from each other"
    assert [*search.feed(102, b"ab\n")] == [FoundLine(102, 105, b"ab")]


@pytest.mark.parametrize("at", [0, LONGEST_LINE_BYTES - 2, LONGEST_LINE_BYTES - 1, 3 * LONGEST_LINE_BYTES])
def test_of_a_line_without_end_the_part_around_the_text_is_shown(at: int) -> None:
    content = b"." * at + b"needle" + b"." * (2 * LONGEST_LINE_BYTES)
    (found,) = found_in([content[begin : begin + 10_000] for begin in range(0, len(content), 10_000)], "needle")
    assert b"needle" in found.text
    assert len(found.text) == SHOWN_BYTES
    assert content[found.offset : found.offset + SHOWN_BYTES] == found.text
