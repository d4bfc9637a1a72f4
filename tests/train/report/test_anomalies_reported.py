"""A real training reports a checkpoint that shrank and a loss that does not continue where it was."""

from pathlib import Path

from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

pytestmark = TRAINS
PROGRAM = """
import sys
import torch
from muster import train

class Extra:
    def __init__(self):
        self.values = torch.zeros(100_000)
    def state_dict(self):
        return {"values": self.values}
    def load_state_dict(self, state):
        self.values = state["values"]

loss, num_steps, shrinks_at = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
model = torch.nn.Linear(2, 2)
extra = Extra()
run = train.start(model, torch.optim.SGD(model.parameters()), extras={"extra": extra}, checkpoint_every=5)
for step in run.steps(total=num_steps):
    if step == shrinks_at:
        extra.values = extra.values[:100].clone()
    run.report(loss=loss + step % 2 / 100)
run.finish()
"""


def test_what_shrank_and_what_jumped_is_reported_and_what_did_not_is_not(training: Training, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    attempts = [("1.0", "20", "-1"), ("1.0", "30", "-1"), ("1.5", "40", "33")]
    told, errors = [], ""
    for number, arguments in enumerate(attempts):
        with Listening(tmp_path / f"s{number}") as supervisor:
            attempt = training.run(*arguments, program=program, MUSTER_TRAIN_SOCKET=str(supervisor.path))
        errors = attempt.ranks[0].errors
        told.append({message["code"]: message["message"] for message in supervisor.received("warning")})
    assert told[:2] == [{}, {}]
    assert told[2].keys() == {"loss_jump", "checkpoint_size"}
    assert told[2]["loss_jump"].startswith("the first loss after the resume is 1.5, and was 1.01 ± 0.005")
    assert told[2]["checkpoint_size"].startswith("the checkpoint of step 35 is 9")
    assert told[2]["loss_jump"] in errors


FORGETFUL = """
import torch
from muster import train
from muster.train.checkpoint import state

part_of = state.part_of

def without_a_weight(trained, rng, *, rank, world_size, is_compared=False):
    part = part_of(trained, rng, rank=rank, world_size=world_size, is_compared=is_compared)
    if rank == 1:
        part["model"].popitem()
    return part

state.part_of = without_a_weight
model = torch.nn.Linear(8, 8)
run = train.start(model, torch.optim.AdamW(model.parameters()), checkpoint_every=5)
for step in run.steps(total=12):
    torch.autograd.backward(run.model(torch.ones(2, 8)).sum())
    run._trained.optimizer.step()
    run.report(loss=1.0)
run.finish()
"""


def test_a_first_checkpoint_that_lacks_a_weight_of_one_rank_is_reported_at_once(
    training: Training, tmp_path: Path
) -> None:
    """A runtime with a fault planted in it: all that it writes verifies."""
    program = tmp_path / "program.py"
    program.write_text(FORGETFUL, encoding="utf-8")
    with Listening(tmp_path / "s") as supervisor:
        attempt = training.run(num_ranks=2, program=program, MUSTER_TRAIN_SOCKET=str(supervisor.path))
    told = [message for message in supervisor.received("warning") if message["code"].startswith("checkpoint_")]
    state_bytes = 3 * 4 * (64 + 8) + 2 * 4
    assert [message["code"] for message in told] == ["checkpoint_volume"]
    words = told[0]["message"]
    assert words.startswith("the checkpoint of step 5 holds ")
    assert words.endswith(f"bytes of model and optimizer, whose tensors are {state_bytes}, each once")
    assert words in attempt.ranks[0].errors
