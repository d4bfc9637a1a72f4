"""The limits of redaction: the length from which a value is struck, and values longer than a piece of a stream."""

import pytest

from workers.host.supervisor.user.redaction import LEAST_BYTES, STRUCK, Redactor, StreamRedactor

PIECE = 4 << 10


@pytest.mark.parametrize(("length", "is_struck"), [(LEAST_BYTES - 1, False), (LEAST_BYTES, True)])
def test_a_value_is_struck_from_its_least_length_on(length: int, *, is_struck: bool) -> None:
    value = b"s" * length
    assert Redactor([value]).strike(b"<" + value + b">") == b"<" + (STRUCK if is_struck else value) + b">"


def test_of_a_value_longer_than_a_piece_the_rest_is_struck_too() -> None:
    value = bytes(65 + number % 26 for number in range(PIECE)) + b"the-tail"
    assert Redactor([value]).strike(value) == STRUCK * 2


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_stream_holds_back_no_more_than_the_beginning_of_a_value(cut: int) -> None:
    stream = StreamRedactor(Redactor([b"password"]))
    assert stream.take(b"a line " + b"password"[:cut]) == b"a line "
    assert stream.take(b"password"[cut:] + b" end") == STRUCK + b" end"
    assert stream.take(b"pass") == b""
    assert stream.rest() == b"pass"
    assert stream.rest() == b""
