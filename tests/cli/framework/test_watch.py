"""``--watch``: again when something changed, over a server's pause, until Ctrl-C."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, RecordedServer, Requested, problem, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # several processes each, on a machine that does ten things at once


def jobs_requested(server: RecordedServer) -> int:
    return sum(1 for asked in server.requested if asked.path.startswith("/v1/jobs"))


def watching(folder: Path, url: str, *words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    Command(folder)
    return subprocess.Popen(
        [sys.executable, "-m", "muster", "job", "list", "--watch", "--every", "0.2s", *words],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "COLUMNS": "80",
            "TERM": "xterm",
            "NO_COLOR": "1",
            "MUSTER_API_URL": url,
            "MUSTER_API_KEY_FILE": str(folder / "test.key"),
        },
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_object_is_reported_again_when_it_changes_and_ctrl_c_ends_it_well(tmp_path: Path) -> None:
    def answered(requested: Requested, _number: int) -> Answer:
        if not requested.path.startswith("/v1/jobs"):
            return problem(403, "forbidden")
        seen = jobs_requested(server)
        if seen == 3:
            return problem(500, "internal")
        return Answer(200, {"items": [JOB | {"state": "QUEUED" if seen < 6 else "ACTIVE"}], "next_cursor": None})

    with serving(answered) as server:
        process = watching(tmp_path, server.url, "--json")
        wait_until(lambda: jobs_requested(server) >= 9, timeout_s=120)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert [json.loads(line)["state"] for line in out.splitlines()] == ["QUEUED", "ACTIVE"]
    assert "what is shown is old" in err
    assert "Traceback" not in err


def test_a_terminal_is_drawn_over_and_keeps_the_last_picture(tmp_path: Path) -> None:
    def answered(requested: Requested, _number: int) -> Answer:
        if not requested.path.startswith("/v1/jobs"):
            return problem(403, "forbidden")
        return Answer(200, {"items": [JOB], "next_cursor": None})

    leader, follower = pty.openpty()
    with serving(answered) as server:
        process = watching(tmp_path, server.url, stdout=follower)
        os.close(follower)
        wait_until(lambda: jobs_requested(server) >= 4, timeout_s=120)  # the fourth is asked when three were drawn
        process.send_signal(signal.SIGINT)
        out = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            if not piece:
                break
            out += piece
        process.communicate(timeout=60)
        os.close(leader)
    assert process.returncode == 0
    text = out.decode()
    before, after = text.split("\x1b[?25h\x1b[?1049l")
    assert before.startswith("\x1b[?1049h\x1b[?25l"), "another screen, so that what stood there comes back"
    assert before.count("\x1b[H") >= 3
    assert "job_1" in after
    assert "\x1b" not in after


def test_the_first_check_that_fails_is_a_fault_as_ever(tmp_path: Path) -> None:
    with serving(lambda _asked, _number: problem(404, "not_found")) as server:
        assert Command(tmp_path).run("job", "show", "job_1", "--watch", url=server.url).returncode == 3
        too_often = Command(tmp_path).run("job", "list", "--watch", "--every", "0s", url=server.url)
    assert too_often.returncode == 2
    assert "Write 0.2s or more." in too_often.stderr
