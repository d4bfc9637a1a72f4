"""One of three ranks ends in the middle of the training: the record blames that rank, never those without it."""

import signal
from pathlib import Path
from typing import Final

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from tests.train.marks import TRAINS, times
from workers.host import supervisor

from .attempt_case import Attempt

pytestmark = TRAINS
CULPRIT: Final = 1
PROGRAM: Final = """
import ctypes, os, signal, sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
for step in range(1000):
    if step == 5 and dist.get_rank() == 1:
        LAST
    dist.all_reduce(torch.ones(1000))
"""
ABORTED: Final = (None, signal.SIGABRT)
"""What an interpreter may come to that ends while a gloo group is open: torch's threads abort it."""
ENDS: Final = {
    "raises": ("raise KeyError('lost')", 1, None, "KeyError: 'lost'"),
    "crashes": ("ctypes.string_at(0)", None, signal.SIGSEGV, "SIGSEGV"),
    "is killed": ("os.kill(os.getpid(), signal.SIGKILL)", None, signal.SIGKILL, "SIGKILL"),
    "leaves with a code": ("sys.exit(3)", 3, None, "code 3"),
    "leaves as if all were done": ("sys.exit(0)", 0, None, "ended with code 0 while other ranks still needed it"),
}


@pytest.mark.parametrize("number", times(long=20, short=1))
@pytest.mark.parametrize("how", ENDS)
def test_the_rank_that_ended_first_is_named_with_its_own_end(
    attempt: Attempt, tmp_path: Path, how: str, number: int
) -> None:
    """Repeated 20 times in ``make soak``, because three ranks and torchrun race to be first."""
    last, code, killed_by, words = ENDS[how]
    script = tmp_path / "train.py"
    script.write_text(PROGRAM.replace("LAST", last), encoding="utf-8")
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    attempt.order(launcher="torchrun", script=str(script), ranks_per_node=3, env=environment, grace_s=5.0)
    supervisor.spawn_supervisor(attempt.folder)
    record = attempt.ended(180)
    culprit = record["ranks"][str(CULPRIT)]
    end = (culprit["exit_code"], culprit["signal"])
    assert end in {(code, killed_by), ABORTED}, f"try {number}: {culprit}"
    verdict = classify(parse_exit_record(record), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.USER_ERROR, CULPRIT), f"try {number}: {verdict.proof}"
    assert words in verdict.proof or end == ABORTED, verdict.proof
    assert attempt.read("clean.json")["clean"]
