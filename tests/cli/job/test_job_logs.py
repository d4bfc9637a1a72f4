"""Lines of several streams are put together from the pieces in which they come."""

import pytest

from muster.cli.job.job_logs import _print_pieces


def piece(attempt_id: str, node_id: str, stream: str, text: str) -> dict[str, str]:
    return {"attempt_id": attempt_id, "node_id": node_id, "stream": stream, "text": text}


def test_a_line_in_pieces_is_joined_with_pieces_of_its_own_stream_alone(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [
        piece("att_1", "node_a", "launcher", "of "),
        piece("att_1", "node_b", "launcher", "of b\n"),
        piece("att_1", "node_a", "launcher", "a\nends"),
        piece("att_2", "node_a", "launcher", "of the next\n"),
        piece("att_2", "node_a", "0", "without an end"),
    ]
    _print_pieces(pieces, str, with_prefix=True, as_json=False)
    assert capsys.readouterr().out.splitlines() == [
        "[launcher] of b",
        "[launcher] of a",
        "[launcher] ends",
        "[launcher] of the next",
        "[0] without an end",
    ]
