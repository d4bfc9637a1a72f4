"""What a program prints cannot control the terminal of the person who reads it."""

import json

import pytest

from muster.cli.framework.terminal_text import plain_line
from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, serving


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("step 1\tloss 0.5 µ ✓", "step 1\tloss 0.5 µ ✓"),
        ("\x1b[1;31mred\x1b[0m and \x1b[38;2;1;2;3mnot", "red and not"),
        ("\x1b]0;a title\x07after", "after"),
        ("\x1b]8;;https://evil.example\x1b\\a link\x1b]8;;\x1b\\", "a link"),
        ("\x1b]52;c;cm0gLXJmIC8=", ""),
        ("\x1bPq#0;2;0\x1b\\after \x1b_private\x1b\\it", "after it"),
        ("\x9b2Jgone \x9d0;title\x9cnot \x90q\x9c", "gone not "),
        ("\x1b[2J\x1b[H\x1b7\x1b8\x1bc\x1b(0text\x1b", "text"),
        ("alert\x07 back\x08\x08 null\x00 del\x7f", "alert back null del"),
        (" 10%|#    |\r 50%|##   |\r100%|#####|\r", "100%|#####|"),
        ("windows\r", "windows"),
        ("user\u202emoc.live\u202c \u2066x\u2069", "usermoc.live x"),
    ],
)
def test_a_line_is_shown_without_what_controls_a_terminal(written: str, shown: str) -> None:
    assert plain_line(written) == shown


def test_the_logs_of_a_job_are_shown_so_and_raw_gives_them_as_they_are(muster: Command) -> None:
    text = "\x1b[31mred\x1b[0m\n\x1b]0;title\x07named"
    piece = {
        "id": 1,
        "attempt_id": "att_1",
        "node_id": "node_1",
        "stream": "0",
        "offset": 0,
        "text": text,
        "written_at": JOB["created_at"],
    }
    held = {**JOB, "state": "FAILED", "state_reason": "user_error: \x1b[31mlast\x1b[0m words"}

    def answer(requested: object, _number: int) -> Answer:
        return Answer(200, {"items": [piece], "next_cursor": None} if "/logs" in str(requested) else held)

    with serving(answer) as server:
        assert muster.run("job", "logs", "job_1", url=server.url).stdout == "[0] red\n[0] named\n"
        raw = muster.run("job", "logs", "job_1", "--raw", "--rank", "0", url=server.url)
        assert raw.stdout == f"{text}\n"
        (document,) = muster.run("job", "logs", "job_1", "--json", url=server.url).stdout.splitlines()
        assert json.loads(document)["text"] == text, "a program reads all of it, escaped"
        waited = muster.run("job", "wait", "job_1", url=server.url)
        assert "\x1b" not in waited.stdout
        assert "last" in waited.stdout
