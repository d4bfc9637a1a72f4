"""Parameters and moments that four ranks saved, on any number of them and in other layouts: the same, bit for bit."""

import importlib.util
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from muster.train.checkpoint import generations, manifest
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.runtime.durable_files import HashingFile
from tests.train.marks import TRAINS
from tests.train.train_case import Training

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

    from muster.train.checkpoint import state
PROGRAM = Path(__file__).parents[1] / "resharded_program.py"
LAYOUTS = {"dp4": ("--layout", "ddp"), "shards": ("--layout", "fsdp"), "dp2×tp2": ("--layout", "fsdp", "--tensor", "2")}
EXACT = 1e-5
Values = dict[str, "torch.Tensor"]


def trained(training: Training, layout: str, num_ranks: int, num_steps: int) -> tuple[Values, Values]:
    """All values as it began and as it ended."""
    folder = training.checkpoints.parent
    training.run(str(folder), *LAYOUTS[layout], "--steps", str(num_steps), num_ranks=num_ranks, program=PROGRAM)
    began, ended = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("began", "ended"))
    return began, ended


def difference(values: Values, others: Values) -> float:
    assert values.keys() == others.keys()
    return max(float((values[name] - others[name]).abs().max()) for name in values)


@pytest.fixture(scope="module")
def saved(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Values]]:
    """By layout, of four ranks: a checkpoint after four steps, and what is in it."""
    found = {}
    for layout in LAYOUTS:
        training = Training(zygote, tmp_path_factory.mktemp("saved"))  # type: ignore[arg-type]  # the session's
        found[layout] = (training.checkpoints, trained(training, layout, 4, 4)[1])
    return found


@pytest.fixture(scope="module")
def alone(zygote: object, tmp_path_factory: pytest.TempPathFactory) -> Values:
    """What one process has after eight steps that nothing interrupted."""
    training = Training(zygote, tmp_path_factory.mktemp("alone"))  # type: ignore[arg-type]  # as above
    return trained(training, "dp4", 1, 8)[1]


@pytest.mark.parametrize(
    ("before", "after", "num_ranks", "rng"),
    [
        ("shards", "shards", 1, "saved_by_more"),
        ("shards", "shards", 2, "saved_by_more"),
        ("shards", "shards", 3, "saved_by_more"),
        ("shards", "shards", 4, "saved"),
        ("shards", "shards", 8, "saved_by_fewer"),
        ("dp2×tp2", "dp4", 4, "saved"),
        ("dp4", "dp2×tp2", 4, "saved"),
    ],
)
def test_what_four_ranks_saved_is_all_there_and_trains_on_as_in_one_process(
    training: Training,
    saved: dict[str, tuple[Path, Values]],
    alone: Values,
    before: str,
    after: str,
    num_ranks: int,
    rng: str,
) -> None:
    folder, values = saved[before]
    shutil.copytree(folder, training.checkpoints)
    began, ended = trained(training, after, num_ranks, 8)
    assert difference(began, values) == 0.0
    assert difference(ended, alone) <= EXACT
    assert difference(ended, values) > EXACT, "it trained"
    store = DiskStore(training.checkpoints)
    fence = store.list_generations()[0].fence
    about = store.read_manifest(Generation(8, fence))
    assert about.lineage is not None
    assert (about.world_size, about.lineage["rng"]) == (num_ranks, rng)
    assert about.lineage["parent"] == "step-00000004/gen-1"


def test_a_piece_that_is_not_there_is_missed_by_name_and_nothing_is_trained(
    training: Training, saved: dict[str, tuple[Path, Values]]
) -> None:
    """All that verifies is not yet all: a part is left out as a faulty save would, with a hash that fits it."""
    folder, _ = saved["shards"]
    shutil.copytree(folder, training.checkpoints)
    without(training.checkpoints, rank=2, name="up.weight")
    attempt = training.start(str(training.checkpoints.parent), *LAYOUTS["shards"], "--steps", "8", program=PROGRAM)
    assert attempt.ended() == [1]
    assert "of up.weight, 48 of 192 values were not saved" in attempt.ranks[0].errors


def without(checkpoints: Path, *, rank: int, name: str) -> None:
    """The checkpoint of step 4 loses a rank's piece of one tensor, and its manifest does not show it."""
    generation = Generation(4, 1)
    about, place = generations.read_manifest(checkpoints, generation), checkpoints / generation.name
    path = place / about.files[rank].name
    part = state.unpacked(path.read_bytes())
    del part["model_pieces"][name]
    with path.open("wb") as opened:
        written = HashingFile(opened)
        state.dump(part, written)
    files = list(about.files)
    files[rank] = replace(files[rank], size=written.size, sha256=written.sha256)
    (place / MANIFEST).write_bytes(manifest.dump(replace(about, files=tuple(files))))
