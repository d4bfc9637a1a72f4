"""Each rank's random numbers are its own: what is saved as another's is refused by the rank's name."""

import importlib.util
import json
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.cli.job.checkpoint_texts import lineage_words
from muster.train.checkpoint import manifest
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.manifest import MANIFEST, FileRecord
from muster.train.checkpoint.storage.disk_store import DiskStore
from tests.train.marks import TRAINS
from tests.train.train_case import Training

if TYPE_CHECKING:
    from typing import Any

pytestmark = TRAINS
if importlib.util.find_spec("torch") is not None:
    import io

    import torch

    from muster.train.parallel.shards import CoverageError
    from muster.train.runtime import rng

PLANTED = Path(__file__).parents[1] / "planted_program.py"
REFUSED = "CoverageError: the part of rank 1 holds random numbers that are not its own"


def test_a_random_state_comes_back_exactly() -> None:
    before = rng.rng_state()
    drawn = torch.rand(3)
    rng.set_random_state(before)
    assert torch.equal(torch.rand(3), drawn)


def test_a_digest_is_of_each_number_and_the_same_once_it_was_saved_and_loaded() -> None:
    state = rng.rng_state()
    digest = rng.digest_of(state)
    file = io.BytesIO()
    torch.save(state, file)
    loaded: dict[str, Any] = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    rng.require_own(loaded, digest, 3)
    torch.rand(1)
    with pytest.raises(CoverageError, match="part of rank 3"):
        rng.require_own(rng.rng_state(), digest, 3)
    rng.require_own(rng.rng_state(), None, 3)


@pytest.mark.parametrize(
    ("num_saved", "num_ranks", "policy", "words"),
    [
        (0, 4, "seeded", "seeded by the program's seed and the rank"),
        (4, 4, "saved", "each rank's own, as saved by as many ranks"),
        (4, 2, "saved_by_more", "states of ranks that no longer exist were dropped"),
        (4, 8, "saved_by_fewer", "of the others seeded by step and rank"),
    ],
)
def test_how_ranks_come_by_their_numbers_has_a_word_that_a_person_is_reported(
    num_saved: int, num_ranks: int, policy: str, words: str
) -> None:
    assert rng.policy(num_saved, num_ranks) == policy
    assert any(words in line for line in lineage_words({"rng": policy}))


@pytest.mark.parametrize("mode", ["", "--synchronous"])
def test_a_part_with_another_ranks_numbers_is_never_committed(training: Training, mode: str) -> None:
    attempt = training.start(*([mode] if mode else []), num_ranks=2, program=PLANTED)
    assert attempt.ended() == [1, 1]
    assert all(REFUSED in rank.errors for rank in attempt.ranks), "every rank says which one it is"
    assert [name for name in training.generations() if "partial" not in name] == []


@pytest.mark.parametrize("mode", ["", "--synchronous"])
def test_numbers_that_are_drawn_while_the_state_is_taken_end_no_training(training: Training, mode: str) -> None:
    training.run("--drawing-state", *([mode] if mode else []), num_ranks=2)
    assert [name for name in training.generations() if "partial" not in name]


def test_a_file_with_another_ranks_numbers_is_not_gone_on_from(training: Training, four_steps: Training) -> None:
    """As something outside of the runtime may have written it: its checksum is right, its numbers are not."""
    training.continue_from(four_steps)
    place, generation = training.checkpoints / "step-00000004/gen-1", Generation(4, 1)
    first, second = (torch.load(place / f"rank-0000{rank}.pt", weights_only=True) for rank in range(2))
    assert rng.digest_of(first["rng"]) != rng.digest_of(second["rng"])
    torch.save({**second, "rng": first["rng"]}, place / "rank-00001.pt")
    content = (place / "rank-00001.pt").read_bytes()
    store = DiskStore(training.checkpoints)
    about = store.read_manifest(generation)
    record = replace(about.files[1], size=len(content), sha256=sha256(content).hexdigest())
    (place / MANIFEST).write_bytes(manifest.dump(replace(about, files=(about.files[0], record))))
    store.verify(generation)
    attempt = training.start(num_ranks=2)
    assert attempt.ended() == [1, 1], "there is no other, and a start from the begin would lose all of it"
    assert all(REFUSED in rank.errors for rank in attempt.ranks)


def test_a_manifest_of_before_that_states_nothing_of_them_is_read(training: Training) -> None:
    whole = training.run(num_ranks=2).steps
    place = training.checkpoints / "step-00000008/gen-1"
    document = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    about = DiskStore(training.checkpoints).read_manifest(Generation(8, 1))
    assert all(len(file["rng_sha256"]) == 64 for file in document["files"])
    older = replace(about, files=tuple(FileRecord(**{**asdict(file), "rng_sha256": None}) for file in about.files))
    (place / MANIFEST).write_bytes(manifest.dump(older))
    again = training.run(num_ranks=2, MUSTER_RESUME=json.dumps({"generation": "step-00000008/gen-1"})).steps
    assert again == [{step: rank[step] for step in range(9, 13)} for rank in whole]
