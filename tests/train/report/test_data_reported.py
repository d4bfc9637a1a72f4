"""A real training on two ranks: its data staged once, and reported with each checkpoint and at a resume."""

from pathlib import Path
from typing import Any

from muster.train.checkpoint import generations
from muster.train.data import dataset_manifest as manifests
from tests.train.data.test_dataset_manifest import made
from tests.train.marks import TRAINS
from tests.train.train_case import Attempt, Listening, Training

pytestmark = TRAINS
PROGRAM = """
import sys, time
import torch
from muster import train

data = train.dataset(sys.argv[1], stage=True)
values = torch.tensor(list(data.files[0].read_bytes()), dtype=torch.float32).reshape(-1, 4)
model = torch.nn.Linear(4, 1)
config = {"lr": float(sys.argv[2])}
run = train.start(model, torch.optim.SGD(model.parameters(), lr=config["lr"]), config=config, data=data,
                  checkpoint_every=3)
for step in run.steps(total=int(sys.argv[3])):
    batch = values[run.sample_indices(len(values), 2)]
    loss = run.model(batch).square().mean()
    loss.backward()
    run.report(loss=loss, tokens=30 if run.rank else 10, padded=0 if run.rank else 10)
run.finish()
"""


class Case:
    def __init__(self, training: Training, folder: Path) -> None:
        self.training = training
        self.folder = folder
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM, encoding="utf-8")

    def corpus(self, name: str, content: bytes) -> Path:
        corpus = made(self.folder / name, values=content)
        manifests.write(corpus, manifests.describe(corpus))
        return corpus

    def run(self, corpus: Path, lr: str, num_steps: str) -> tuple[Attempt, Listening]:
        with Listening(self.folder / f"socket-{num_steps}") as supervisor:
            attempt = self.training.run(
                str(corpus),
                lr,
                num_steps,
                num_ranks=2,
                program=self.program,
                MUSTER_TRAIN_SOCKET=str(supervisor.path),
                MUSTER_SCRATCH_DIR=str(self.folder / "scratch"),
                MUSTER_SPEC_SHA256="5" * 64,
            )
        return attempt, supervisor


def lineages(training: Training) -> dict[int, dict[str, Any]]:
    """Of each generation by its step."""
    found = [
        generations.verify(training.checkpoints, each) for each in generations.list_generations(training.checkpoints)
    ]
    return {about.step: about.lineage or {} for about in found}


def test_code_configuration_data_and_parents_are_kept_and_a_resume_with_others_is_reported(
    training: Training, tmp_path: Path
) -> None:
    case = Case(training, tmp_path)
    corpus = case.corpus("corpus", bytes(range(64)))
    attempt, supervisor = case.run(corpus, "0.1", "6")
    assert sum(rank.errors.count("is copied to") for rank in attempt.ranks) == 1
    assert supervisor.received("warning") == []
    first = lineages(training)
    assert [first[step]["parent"] for step in (3, 6)] == [None, "step-00000003/gen-1"]
    assert first[6]["data_sha256"] == manifests.read(corpus).sha256
    assert (first[6]["config"], first[6]["spec_sha256"], len(first[6]["code_sha256"])) == ({"lr": 0.1}, "5" * 64, 64)
    told = {one["step"]: one["lineage"] for one in supervisor.received("checkpoint", status="committed")}
    assert (told[6]["parent"], told[6]["world_size"], "config" in told[6]) == ("step-00000003/gen-1", 2, False)

    _, supervisor = case.run(case.corpus("other", bytes(range(1, 65))), "0.2", "9")
    assert {one["code"] for one in supervisor.received("warning")} == {"config_changed", "data_changed"}
    assert lineages(training)[9]["parent"] == "step-00000006/gen-1"


def test_each_rank_reports_its_samples_tokens_and_padding(training: Training, tmp_path: Path) -> None:
    case = Case(training, tmp_path)
    _, supervisor = case.run(case.corpus("corpus", bytes(range(64))), "0.1", "6")
    last = sorted(supervisor.received("pace"), key=lambda one: one["tokens_per_step"])
    assert [(one["samples"], one["samples_per_step"]) for one in last] == [(12, 2.0), (12, 2.0)]
    assert [(one["tokens_per_step"], one["padding"]) for one in last] == [(10.0, 0.5), (30.0, 0.0)]
    assert [one["epochs"] for one in last] == [1.5, 1.5], "6 steps of 4 samples, of 16"
