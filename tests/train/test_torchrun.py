"""The example under real torchrun: stopped by a signal to one rank, it goes on bit for bit."""

import os
import signal
from pathlib import Path

from .marks import TRAINS
from .train_case import ROOT, Training, under_torchrun

pytestmark = TRAINS
EXAMPLE = ROOT / "examples" / "train_transformer.py"
ARGUMENTS = ("--steps", "20", "--checkpoint-every", "0")


def losses_in(output: str) -> dict[int, str]:
    lines = (line.split() for line in output.splitlines() if line.startswith("step "))
    return {int(words[1]): words[3] for words in lines}


def test_the_example_learns_stops_and_goes_on_bit_for_bit(training: Training) -> None:
    process = under_torchrun(EXAMPLE, *ARGUMENTS, "--step-sleep", "1.0", folder=training.checkpoints)
    assert process.stdout is not None
    head = "".join(process.stdout.readline() for _ in range(3))
    # The last child of torchrun is rank 1: the word has to spread from there.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(children[-1]), signal.SIGTERM)
    output, errors = process.communicate(timeout=180)
    before = losses_in(head + output)
    assert training.generations() == [f"step-{max(before):08d}/gen-1"], errors

    again = training.run(*ARGUMENTS, num_ranks=2, program=EXAMPLE, MUSTER_FENCE="")
    after = {step: words[1] for step, words in again.steps[0].items()}
    assert min(after) == max(before) + 1
    whole = training.run(*ARGUMENTS, num_ranks=2, program=EXAMPLE, MUSTER_CHECKPOINT_DIR="")
    undisturbed = {step: words[1] for step, words in whole.steps[0].items()}
    assert {**before, **after} == undisturbed
    assert float(undisturbed[20]) < float(undisturbed[1]) - 0.5, "it learns"
