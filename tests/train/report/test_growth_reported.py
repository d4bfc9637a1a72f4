"""A real program that keeps something of each step gets a warning."""

from pathlib import Path

from tests.train.marks import TRAINS
from tests.train.train_case import Listening, Training

pytestmark = TRAINS
MIB = 1 << 20
LEAKS = """
import sys
import torch
from muster import train
from muster.train.report import pace

pace.REPORT_EVERY_S = 0.0
kept_bytes = int(sys.argv[1])
kept = []
model = torch.nn.Linear(2, 2)
run = train.start(model, torch.optim.SGD(model.parameters()), checkpoint_every=1000)
for step in run.steps(total=130):
    kept.append(torch.ones(kept_bytes, dtype=torch.uint8))
    run.report(loss=1.0)
run.finish()
"""


def test_a_real_program_that_keeps_something_of_each_step_is_reported_so(training: Training, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LEAKS, encoding="utf-8")
    found = []
    for number, kept_bytes in enumerate((4 * MIB, 16)):
        with Listening(tmp_path / f"s{number}") as supervisor:
            attempt = training.run(
                str(kept_bytes), program=program, MUSTER_TRAIN_SOCKET=str(supervisor.path), MUSTER_CHECKPOINT_DIR=""
            )
        found.append([message["code"] for message in supervisor.received("warning")])
        assert ("grows and does not come back" in attempt.ranks[0].errors) == (number == 0)
    assert found == [["memory_growth"], []]
