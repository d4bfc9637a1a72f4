"""A generation whose bytes are right and whose content cannot be restored costs its own steps, and no more."""

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from muster.train.checkpoint import manifest
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST
from muster.train.checkpoint.storage.disk_store import DiskStore

from .marks import TRAINS
from .train_case import Training

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import torch

Steps = dict[int, list[str]]


def no_weights(path: Path) -> None:
    path.write_bytes(b"no weights")


def of_another_form(path: Path) -> None:
    part = torch.load(path, weights_only=True)
    torch.save({name: value for name, value in part.items() if name != "own"}, path)


def of_another_shape(path: Path) -> None:
    part = torch.load(path, weights_only=True)
    part["model"] = {name: value.reshape(1, *value.shape) for name, value in part["model"].items()}
    torch.save(part, path)


def spoil(checkpoints: Path, change: Callable[[Path], None]) -> None:
    """Change rank 1's file as something outside of the runtime may have written it: its checksum is right."""
    place, generation = checkpoints / "step-00000008/gen-1", Generation(8, 1)
    change(place / "rank-00001.pt")
    content = (place / "rank-00001.pt").read_bytes()
    about = DiskStore(checkpoints).read_manifest(generation)
    record = replace(about.files[1], size=len(content), sha256=hashlib.sha256(content).hexdigest())
    (place / MANIFEST).write_bytes(manifest.dump(replace(about, files=(about.files[0], record))))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_weights, "rank-00001.pt cannot be unpacked: "),
        (of_another_form, "rank-00001.pt cannot be unpacked: KeyError: 'own'"),
        (of_another_shape, "the model differs from the one that was saved: "),
    ],
)
def test_it_is_skipped_with_its_reason_on_all_ranks(
    training: Training, eight_steps: Training, undisturbed: list[Steps], change: Callable[[Path], None], why: str
) -> None:
    training.continue_from(eight_steps)
    spoil(training.checkpoints, change)
    again = training.run(num_ranks=2)
    assert again.steps == [{step: rank[step] for step in range(5, 13)} for rank in undisturbed]
    assert f"step-00000008/gen-1 is not used: {why}" in again.ranks[0].errors
