"""``muster up`` waits as long as there is progress, says what for, and ends at once where a process died."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from local.children import Child
from local.errors import EmbeddedServerError
from local.progress import PATIENCE_S, Patience, Work, work_of
from local.stack import StackError, wait_ready
from muster.ports import free_port

BURNS = "s = 0\nfor n in range(4_000_000):\n    s += n\nprint('done', flush=True)\ninput()"


class Waited:
    """A clock that the test moves, the work of a process by it, and what a person is waited."""

    def __init__(self, work: Callable[[float], Work]) -> None:
        self.now_s = 0.0
        self.words: list[str] = []
        self.patience = Patience(
            "the API", lambda: work(self.now_s), report=self.words.append, clock=lambda: self.now_s
        )

    def wait(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            self.patience.require_progress()


def test_a_process_that_works_is_waited_for_however_long_and_what_for_is_reported() -> None:
    waited = Waited(lambda now_s: Work(cpu_s=now_s / 50))
    waited.wait(20 * PATIENCE_S)
    assert len(waited.words) == 20 * PATIENCE_S / 10
    assert waited.words[0] == "waiting for the API: 10 s, 0.2 s of CPU used so far"


def test_a_slow_disk_is_progress_and_so_is_a_child_that_ended() -> None:
    Waited(lambda now_s: Work(1.0, int(now_s) << 16)).wait(10 * PATIENCE_S)
    Waited(lambda now_s: Work(5.0 - now_s // 50)).wait(4 * PATIENCE_S)


@pytest.mark.parametrize("cpu_per_s", [0.0, 0.001], ids=["hangs", "tries again and again"])
def test_one_without_progress_is_given_up_after_its_time_and_named(cpu_per_s: float) -> None:
    waited = Waited(lambda now_s: Work(cpu_s=min(now_s, 30) + cpu_per_s * now_s))
    with pytest.raises(EmbeddedServerError, match=r"the API: no progress for 60 s"):
        waited.wait(1_000)
    assert waited.now_s == pytest.approx(30 + PATIENCE_S, abs=2)


def test_the_work_of_a_process_includes_its_childrens() -> None:
    shell = subprocess.Popen(
        ["/bin/sh", "-c", f'"$0" -c "{BURNS}"; true', sys.executable], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"done\n"
        assert work_of(shell.pid).differs_from(Work())
    finally:
        shell.communicate(b"\n")
    assert work_of(shell.pid) == Work()


def test_a_child_that_died_ends_the_wait_at_once_with_its_last_words(tmp_path: Path) -> None:
    variables = {"PATH": os.environ["PATH"]}
    child = Child("api", ["no-such-command"], variables, tmp_path / "api.log")
    child.start()
    with pytest.raises(StackError, match=r"api ended \(exit code 2\) before the stack was up; .*no-such-command"):
        wait_ready(f"http://127.0.0.1:{free_port()}", [child], {}, threading.Event(), print)
