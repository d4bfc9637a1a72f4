"""A rank that sleeps in the middle of a training, under the policy that ships: named within a minute."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.domain.policy.document import DEFAULT_POLICY
from tests.train.marks import TRAINS
from tests.warm_python import WarmPython
from tests.workers.host.burial import bury
from tests.workers.local.runs import run_job

pytestmark = TRAINS
NAMED_WITHIN_S = 60
PROGRAM = """
import time

import torch

from muster import train

model = torch.nn.Linear(8, 8)
run = train.start(model, optimizer := torch.optim.SGD(model.parameters(), 0.01), checkpoint_every=5)
for step in run.steps(total=100):
    if step == 12 and run.rank == 1:
        print("sleeps", flush=True)
        time.sleep(1e6)
    loss = run.model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    run.report(loss=loss)
    time.sleep(0.1)
run.finish()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for path in tmp_path.rglob("attempts/*/"):
        bury(path)


def test_one_sentence_names_it_with_its_line_within_a_minute(folder: Path, warm_python: WarmPython) -> None:
    """The program calls no collective itself, so the other rank waits for it in the exchange of its own step."""
    script = folder / "program.py"
    script.write_text(PROGRAM)
    line = 1 + PROGRAM.splitlines().index("        time.sleep(1e6)")
    slept_at, named_at = list[float](), dict[str, float]()

    def show(_stream: str, words: str) -> None:
        if "sleeps" in words:
            slept_at.append(time.monotonic())

    def report(words: str) -> None:
        named_at.setdefault(words, time.monotonic())

    ended = run_job(
        folder / "run",
        {"script": str(script), "python": str(warm_python.daemon)},
        DEFAULT_POLICY.watch,
        report,
        show,
        ranks=2,
        restart={"max_restarts": 0},
    )
    (attempt,) = ended["attempts"]
    assert (ended["state"], attempt["cause"], attempt["culprit_rank"]) == ("FAILED", "hang", 1), named_at
    (sentence,) = [words for words in named_at if words.startswith("hang: ")]
    assert sentence.startswith("hang: Rank 1 ")
    assert f"in <module> ({script}:{line})" in sentence
    assert named_at[sentence] - slept_at[0] <= NAMED_WITHIN_S
    assert attempt["saved_step"] == 10, "the next attempt continues there"
    found = json.loads((Path(attempt["folder"]) / "watch" / "host-this-host.json").read_text())
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1], "both stacks are kept"
