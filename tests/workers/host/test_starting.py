"""Starts of supervisors: the one that waits first, a fresh one where that has died, and never a program twice."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.host.supervisor.attempt_case import Attempt, until
from workers.host import starting, supervisor
from workers.host.starting import Starter


@pytest.fixture
def starter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Starter]:
    monkeypatch.setattr(starting, "FIRST_PAUSE_MS", 0)
    monkeypatch.setattr(starting, "NEXT_PAUSE_MS", 600_000)
    monkeypatch.setattr(supervisor.spawning, "_HAND_OVER_PATIENCE_S", 60.0)
    one = Starter(tmp_path, sys.executable, is_warm=True)
    yield one
    one.close()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    folder = tmp_path / "attempts" / f"att_{os.getpid()}"
    folder.mkdir(parents=True)
    one = Attempt(folder, 1)
    one.order(command=[sys.executable, "-c", "print('ran')"])
    return one


def waiting_pid(starter: Starter) -> int:
    assert starter._waiting is not None
    return starter._waiting.pid


def test_one_waits_and_takes_the_attempt(starter: Starter, attempt: Attempt) -> None:
    assert starter.pause_ms() == 0
    starter.prepare()
    pid = waiting_pid(starter)
    starter.prepare()
    assert waiting_pid(starter) == pid, "one at a time"
    assert starter.pause_ms() is None
    starter.start(attempt.folder)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    assert attempt.read("supervisor.json")["pid"] == pid
    assert (starter.pause_ms() or 0) > 1_000, "the next only after a while"


def test_one_that_died_is_replaced_at_once(starter: Starter, attempt: Attempt) -> None:
    starter.prepare()
    pid = waiting_pid(starter)
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    starter.start(attempt.folder)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    assert attempt.read("supervisor.json")["pid"] != pid


def test_one_that_answers_too_late_leaves_one_run(
    starter: Starter, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor.spawning, "_HAND_OVER_PATIENCE_S", 0.1)
    starter.prepare()
    pid = waiting_pid(starter)
    os.kill(pid, signal.SIGSTOP)
    starter.start(attempt.folder)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
    os.kill(pid, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end")
    assert attempt.log().count("ran") == 1
    assert "has been started here before" in (attempt.folder / "supervisor.log").read_text(encoding="utf-8")


def test_a_cold_host_keeps_none(tmp_path: Path, attempt: Attempt) -> None:
    starter = Starter(tmp_path, sys.executable, is_warm=False)
    starter.prepare()
    assert starter._waiting is None
    assert starter.pause_ms() is None
    starter.start(attempt.folder)
    assert attempt.ended()["ranks"]["0"]["exit_code"] == 0
