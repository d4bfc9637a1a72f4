"""A resume reads each byte of a checkpoint once, by one rank, and none is unpickled before all are verified."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from muster.train.checkpoint import manifest
from muster.train.checkpoint.generations import Generation, read_manifest
from muster.train.checkpoint.manifest import MANIFEST
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Attempt, Listening, Training

pytestmark = TRAINS
UNSAFE = "rank-00000.pt cannot be unpacked: CoverageError: a state_dict holds more than"
PROGRAM = HERE / "read_program.py"
SLACK_BYTES = 1 << 20
"""What a process reads besides: manifests, other ranks' words."""


def resumed(training: Training, place: Path, layout: str, num_ranks: int, num_steps: int) -> tuple[list[int], Attempt]:
    """Return how much of the files each rank reports that it read to continue, and the attempt."""
    with Listening(place) as supervisor:
        # Without git, which the lineage asks: what a child reads counts as its parent's, and here only resuming should.
        variables = {"MUSTER_TRAIN_SOCKET": str(supervisor.path), "PATH": "/no/git/here"}
        attempt = training.run(layout, str(num_steps), num_ranks=num_ranks, program=PROGRAM, **variables)
    told = supervisor.received("resumed", step=num_steps - 2)
    assert len(told) == num_ranks, supervisor.received("resumed")
    assert all(0 < message["restore_s"] < 600 for message in told)
    return sorted((message["read_bytes"] for message in told), reverse=True), attempt


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("ddp", 2), ("ddp", 2)),
        (("fsdp", 2), ("fsdp", 2)),
        (("fsdp", 3), ("fsdp", 2)),
        (("ddp", 2), ("fsdp", 3)),
    ],
)
def test_each_byte_is_read_once(training: Training, before: tuple[str, int], after: tuple[str, int]) -> None:
    training.run(before[0], "2", num_ranks=before[1], program=PROGRAM)
    sizes = [path.stat().st_size for path in sorted(training.checkpoints.glob("step-00000002/gen-1/rank-*.pt"))]
    assert len(sizes) == before[1]
    assert min(sizes) > 4 * SLACK_BYTES
    read, attempt = resumed(training, training.checkpoints.parent / "s", *after, 4)
    of_rank = [sum(sizes[rank :: after[1]]) for rank in range(after[1])]
    assert read == sorted(of_rank, reverse=True)
    assert sum(read) == sum(sizes)
    for steps, expected in zip(attempt.steps, of_rank, strict=True):
        assert expected <= int(steps[3][0]) <= expected + SLACK_BYTES, "and the kernel counts as much"


@pytest.mark.parametrize("layout", ["ddp", "fsdp"])
def test_what_was_read_by_others_is_what_was_saved(training: Training, layout: str) -> None:
    undisturbed = training.run(layout, "6", num_ranks=2, program=PROGRAM).steps
    for step in (4, 6):
        for path in (training.checkpoints / f"step-{step:08d}/gen-1").iterdir():
            path.unlink()
    again = training.run(layout, "6", num_ranks=2, program=PROGRAM).steps
    assert [{step: words[1] for step, words in rank.items()} for rank in again] == [
        {step: words[1] for step, words in rank.items() if step > 2} for rank in undisturbed
    ]


def test_nothing_is_unpickled_on_any_rank_before_every_file_is_verified_by_one(training: Training) -> None:
    """Rank 0's file verifies and holds what must not be unpickled; rank 1's, which rank 0 never reads, is damaged."""
    training.run("ddp", "4", num_ranks=2, program=PROGRAM)
    generation = Generation(4, 1)
    place = training.checkpoints / generation.name
    foreign = b"\x80\x04cos\nsystem\n."
    (place / "rank-00000.pt").write_bytes(foreign)
    about = read_manifest(training.checkpoints, generation)
    first = replace(about.files[0], size=len(foreign), sha256=hashlib.sha256(foreign).hexdigest())
    (place / MANIFEST).write_bytes(manifest.dump(replace(about, files=(first, about.files[1]))))
    content = bytearray((place / "rank-00001.pt").read_bytes())
    content[-100] ^= 1
    (place / "rank-00001.pt").write_bytes(content)
    attempt = training.run("ddp", "6", num_ranks=2, program=PROGRAM)
    assert min(attempt.steps[0]) == 3, "from the generation before"
    assert UNSAFE not in attempt.ranks[0].errors, "it was not unpickled"
    content[-100] ^= 1
    (place / "rank-00001.pt").write_bytes(content)
    for later in ("step-00000004/gen-2", "step-00000006"):
        shutil.rmtree(training.checkpoints / later)
    skipped = training.run("ddp", "6", num_ranks=2, program=PROGRAM)
    assert [min(steps) for steps in skipped.steps] == [3, 3], "and verified by all, it is skipped by all"
    assert f"{generation.name} is not used: {UNSAFE}" in skipped.ranks[0].errors
    shutil.rmtree(training.checkpoints / "step-00000002")
    for later in ("step-00000004/gen-3", "step-00000006"):
        shutil.rmtree(training.checkpoints / later)
    refused = training.start("ddp", "6", num_ranks=2, program=PROGRAM)
    assert refused.ended() == [1, 1], "without another it is an error on every rank, and none hangs"
    assert all(f"CoverageError: {UNSAFE}" in rank.errors for rank in refused.ranks)
