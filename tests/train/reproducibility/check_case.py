"""A check on ranks that are forked: an undisturbed run, a killed one and its resume, and what is judged of them."""

import json
import signal
from pathlib import Path

from tests.train.train_case import Attempt as Processes
from tests.train.train_case import Training
from watch.reproducibility.judge import Judgement, Runs, judge
from watch.reproducibility.records import Attempt, parse_attempt

STEPS, SAVE_AT = 12, 5


def recorded(folder: Path, number: int) -> Attempt:
    """Return what the attempt of that number recorded."""
    files = sorted(folder.glob(f"rank-*-{number}.jsonl"))
    return parse_attempt({int(path.name.split("-")[1]): path.read_text(encoding="utf-8") for path in files})


class Check:
    """Runs of one program."""

    def __init__(self, training: Training, folder: Path, program: Path, *words: str, num_ranks: int = 1) -> None:
        self._training = training
        self._folder = folder
        self._program = program
        self._words = words
        self._num_ranks = num_ranks

    def _start(self, name: str, kill_at: int | None, checkpoints: str) -> Processes:
        order = {"folder": str(self._folder / name), "steps": STEPS, "save_at": SAVE_AT, "kill_at": kill_at}
        return self._training.start(
            *self._words,
            num_ranks=self._num_ranks,
            program=self._program,
            MUSTER_TRAIN_CHECK=json.dumps(order),
            MUSTER_TRAIN_SYNCHRONOUS="1",
            MUSTER_CHECKPOINT_DIR=str(self._folder / checkpoints),
            MUSTER_FENCE="",
        )

    def run(self) -> Judgement:
        """Run all three and judge them."""
        whole = self._start("whole", None, "checkpoints-1")
        killed = self._start("cut", SAVE_AT + 1, "checkpoints-2")
        assert whole.ended() == [0] * self._num_ranks, whole.ranks[0].errors
        assert killed.ended()[-1] == -signal.SIGKILL, killed.ranks[0].errors
        resumed = self._start("cut", None, "checkpoints-2")
        assert resumed.ended() == [0] * self._num_ranks, resumed.ranks[0].errors
        cut = self._folder / "cut"
        runs = Runs(recorded(self._folder / "whole", 1), recorded(cut, 1), recorded(cut, 2))
        assert (runs.whole.last_step, runs.resumed.first_step, runs.resumed.last_step) == (STEPS, SAVE_AT, STEPS)
        return judge(runs)
