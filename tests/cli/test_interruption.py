"""Ctrl-C at any moment: no trace, exit code 130; and a caller that was creating something learns how to continue."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from muster.cli.framework.exits import Exit
from tests.cli.command import JOB, Command
from tests.recorded_server import Answer, Requested, serving
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(600)  # several processes each, on a machine that does ten things at once

SIGNALLED_AT_IMPORT = """
import builtins, os, signal, sys
wanted = sys.argv.pop(1)
load = builtins.__import__
def noticing(name, *given, **named):
    if name == wanted:
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *given, **named)
from muster.cli import main
builtins.__import__ = noticing
main()
"""
"""Ctrl-C exactly when the module of that name begins to load."""


@pytest.mark.parametrize(
    "module", ["typer", "muster.cli.framework.app", "muster.cli.framework.tree", "muster.cli.framework.output", "httpx"]
)
def test_ctrl_c_while_modules_load_shows_no_trace(tmp_path: Path, module: str) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", SIGNALLED_AT_IMPORT, module, "job", "list"],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "MUSTER_API_URL": "http://127.0.0.1:9",
            "MUSTER_API_KEY_FILE": str(Command(tmp_path).key_file),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == Exit.INTERRUPTED, answer.stderr
    assert "Traceback" not in answer.stderr


def start(folder: Path, url: str, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "muster", *words],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "MUSTER_API_URL": url,
            "MUSTER_API_KEY_FILE": str(folder / "test.key"),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_interrupted_submission_states_how_to_learn_what_became_of_it_and_is_one_job(tmp_path: Path) -> None:
    muster = Command(tmp_path)
    may_answer = threading.Event()

    def slowly_at_first(_requested: Requested, number: int) -> Answer:
        if number == 0:
            may_answer.wait(120)
        return Answer(201, JOB)

    words = ("job", "submit", "--no-bundle", "--", "train.py")
    with serving(slowly_at_first) as server:
        first = start(tmp_path, server.url, *words)
        wait_until(lambda: bool(server.requested), timeout_s=120)
        first.send_signal(signal.SIGINT)
        said = "".join(first.communicate(timeout=60))
        may_answer.set()
        again = muster.run(*words, url=server.url)
        anew = muster.run(*words, url=server.url)
        keys = [asked.headers["idempotency-key"] for asked in server.requested]
    assert first.returncode == Exit.INTERRUPTED
    assert "The same command again says, and never makes two." in said
    assert "Traceback" not in said
    assert "not twice" in again.stderr
    assert "not twice" not in anew.stderr
    assert keys[0] == keys[1] != keys[2]


def test_two_of_the_same_command_at_once_are_two_jobs(tmp_path: Path) -> None:
    """Neither was interrupted: two commands request two jobs."""
    Command(tmp_path)
    may_answer = threading.Event()

    def slowly(_requested: Requested, _number: int) -> Answer:
        may_answer.wait(120)
        return Answer(201, JOB)

    with serving(slowly) as server:
        both = [start(tmp_path, server.url, "job", "submit", "--no-bundle", "--", "train.py") for _ in range(2)]
        wait_until(lambda: len({asked.headers["idempotency-key"] for asked in server.requested}) == 2, timeout_s=300)
        may_answer.set()
        codes = [process.wait(60) for process in both]
        for process in both:
            process.communicate()
    assert codes == [0, 0]


def test_of_a_repeated_command_the_first_words_are_sent_again(tmp_path: Path) -> None:
    """`--for 2h` is another moment by then; under one key only the very same request is answered again."""
    muster = Command(tmp_path)
    cordon = {"id": "cdn_1", "node_id": "node_1", "gpu_uuid": None}
    node = {"id": "node_1", "name": "h100-1", "contact": "LIVE"}

    def lost_at_first(requested: Requested, _number: int) -> Answer:
        if requested.method == "GET":
            return Answer(
                200,
                {"items": [node], "next_cursor": None}
                if requested.path.startswith("/v1/nodes?") or requested.path == "/v1/nodes"
                else node,
            )
        changes = [each for each in server.requested if each.method == "POST"]
        return Answer(500, {"code": "internal", "detail": "lost"}) if len(changes) == 1 else Answer(201, cordon)

    words = ("cordon", "create", "--node", "h100-1", "--reason", "a fan", "--for", "2h")
    with serving(lost_at_first) as server:
        assert muster.run(*words, url=server.url).returncode == Exit.SERVER_FAULT
        assert muster.run(*words, url=server.url).returncode == 0
        first, second = (each for each in server.requested if each.method == "POST")
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert json.loads(first.body)["node_id"] == "node_1"


def test_a_refusal_is_an_answer_and_is_not_queried_again(tmp_path: Path) -> None:
    muster = Command(tmp_path)
    with serving(lambda _asked, _number: Answer(409, {"code": "conflict", "detail": "no"})) as server:
        for _ in range(2):
            muster.run("tenant", "create", "acme", url=server.url)
        first, second = (asked.headers["idempotency-key"] for asked in server.requested)
    assert first != second
    assert not list((tmp_path / ".local" / "state" / "muster" / "pending").iterdir())
