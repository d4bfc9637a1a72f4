"""Sample streams draw each sample of an epoch once, on any ranks, with any loader, over every resume."""

from collections import Counter
from typing import Any

import pytest
from torch.utils.data import DataLoader

from muster.train.checkpoint import generations
from muster.train.data.loader_batches import count_batches
from muster.train.data.segments import Division
from muster.train.data.stream_set import Streams
from muster.train.parallel.ranks import Agreement
from tests.train.marks import TRAINS
from tests.train.train_case import HERE, Attempt, Training

pytestmark = TRAINS
PROGRAM = HERE / "streaming_program.py"
NUM_SAMPLES = 40


def drawn(attempt: Attempt, *, after: int = 0) -> list[int]:
    """Return what all ranks trained on in the steps after ``after``, in the order of steps and ranks."""
    steps = sorted({step for rank in attempt.steps for step in rank if step > after})
    return [int(sample) for step in steps for rank in attempt.steps for sample in rank.get(step, [])]


def begins_as_epochs_do(samples: list[int]) -> bool:
    """Whether each epoch holds every sample once, and the last, which may be incomplete, none twice."""
    counts = Counter(samples)
    num_epochs = len(samples) // NUM_SAMPLES
    return set(counts) <= set(range(NUM_SAMPLES)) and all(
        counts[sample] in (num_epochs, num_epochs + 1) for sample in range(NUM_SAMPLES)
    )


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--workers", "2"),
        ("--workers", "2", "--hold"),
        ("--draws", "3", "--hold"),
        ("--draws", "2", "--no-loader"),
        ("--warm-up", "--workers", "1"),
        ("--by-epoch", "--draws", "3", "--workers", "1"),
        ("--batches", "3", "1"),
        ("--draws", "2", "--fewer", "1"),
    ],
    ids=" ".join,
)
def test_a_resume_draws_exactly_what_an_undisturbed_run_does(training: Training, options: tuple[str, ...]) -> None:
    """It crashes in the middle of a step whose batch is drawn and whose loader has read ahead."""
    whole = training.run(*options, num_ranks=2, program=PROGRAM, MUSTER_CHECKPOINT_DIR="")
    assert begins_as_epochs_do(drawn(whole))
    crashed = training.start(*options, "--crash-at", "5", num_ranks=2, program=PROGRAM, MUSTER_FENCE="")
    assert crashed.ended() == [1, 1], crashed.ranks[0].errors
    resumed = training.run(*options, num_ranks=2, program=PROGRAM, MUSTER_FENCE="")
    for mine, undisturbed in zip(resumed.steps, whole.steps, strict=True):
        assert mine == {step: undisturbed[step] for step in range(5, 9)}


@pytest.mark.parametrize(
    "options",
    [("--workers", "1", "--hold"), ("--draws", "2", "--fewer", "1"), ("--by-epoch", "--draws", "2")],
    ids=" ".join,
)
def test_four_ranks_then_two_then_three_draw_each_sample_of_an_epoch_once(
    training: Training, options: tuple[str, ...]
) -> None:
    seen = []
    for steps, num_ranks in ((4, 4), (8, 2), (14, 3)):
        attempt = training.run(*options, "--steps", str(steps), num_ranks=num_ranks, program=PROGRAM)
        seen += drawn(attempt)
        assert begins_as_epochs_do(seen)
    assert len(seen) > NUM_SAMPLES
    newest = generations.list_generations(training.checkpoints)[0]
    about = generations.read_manifest(training.checkpoints, newest)
    assert about.schema == 5
    assert about.streams["train"]["num_drawn"] == len(seen)


def test_a_stream_that_begins_late_continues_where_it_stood(training: Training) -> None:
    words = ("--late", "2")
    training.run(*words, "--steps", "4", program=PROGRAM)
    training.run(*words, "--steps", "6", program=PROGRAM)
    last = training.run(*words, "--steps", "8", program=PROGRAM)
    assert drawn(last) == list(range(8, 12))


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--loader", "sampler"), "write DataLoader(data, batch_sampler=stream)"),
        (("--loader", "disorder", "--workers", "2"), "a DataLoader with in_order=False"),
        (("--loader", "names"), "on rank 0: Order(name='train 0'"),
        (("--batches", "3", "1", "2"), "batch_size lists 3 numbers, and 2 ranks read different samples"),
        (("--batches", "0"), "batch_size 0: each must be a whole number, 1 or more"),
        (("--by-epoch", "--samples", "1"), "an epoch of 1 samples is too short for 2 ranks"),
    ],
    ids=str,
)
def test_what_would_lose_samples_ends_every_rank_with_what_to_write(
    training: Training, options: tuple[str, ...], reported: str
) -> None:
    attempt = training.start(*options, num_ranks=2, program=PROGRAM)
    assert attempt.ended() == [1, 1]
    assert all("ValueError" in rank.errors and reported in rank.errors for rank in attempt.ranks)


def test_another_number_of_samples_is_refused_by_the_streams_name(training: Training) -> None:
    training.run("--steps", "2", program=PROGRAM)
    attempt = training.start("--steps", "4", "--samples", "41", program=PROGRAM)
    assert attempt.ended() == [1]
    assert "the stream train was saved with num_samples 40 and has 41 now" in attempt.ranks[0].errors


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rollback_takes_the_loader_along_and_a_skipped_range_stays_out(num_workers: int) -> None:
    """A loader that has read ahead drops what it holds."""
    count_batches()
    streams = Streams(5, 0, 1)
    stream = streams.stream(streams.order("train", 100, is_shuffled=False), Division(100, (2,)))
    loader: DataLoader[int] = DataLoader(range(100), batch_sampler=stream, num_workers=num_workers)  # type: ignore[arg-type]
    batches = iter(loader)
    states, marks = [streams.document()], [streams.marks()]

    def step() -> list[int]:
        streams.begin()
        drawn: list[int] = next(batches).tolist()
        streams.end()
        figures = streams.figures()
        streams.agree(figures, Agreement(0, 1, None))
        states.append(streams.document())
        marks.append(streams.marks())
        return drawn

    assert [step() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    streams.skip(marks[2], marks[3])
    streams.roll_back(states[1])
    assert [step() for _ in range(3)] == [[2, 3], [6, 7], [8, 9]]
    streams.skip(marks[1], marks[2])
    streams.roll_back(states[0])
    assert [step() for _ in range(2)] == [[0, 1], [6, 7]], "the second range ends where the first begins"


def test_a_mark_does_not_grow_with_the_ranks() -> None:
    streams = Streams(5, 0, 1000)
    streams.stream(streams.order("train", 10**6, is_shuffled=True), Division(10**6, (2,) * 1000))
    (mark,) = streams.marks().values()
    assert (mark.left, mark.base, mark.draws, mark.num_drawn) == ((), 0, 0, 0)


class Whole:
    """A whole number of a library's own type, as numpy's are."""

    def __index__(self) -> int:
        return 8


@pytest.mark.parametrize("given", [8, Whole(), [8, Whole()], (8, 8)], ids=repr)
def test_a_batch_size_is_a_whole_number_of_any_type(given: Any) -> None:
    sizes = Streams(5, 0, 2).sizes(given)
    assert sizes == (8, 8)
    assert [type(each) for each in sizes] == [int, int], "as a manifest holds them"


@pytest.mark.parametrize("given", [2.0, None, True, "ab", [8, 2.0], [8, -1]], ids=repr)
def test_what_is_no_whole_number_is_refused_with_what_is_accepted(given: Any) -> None:
    with pytest.raises(ValueError, match="each must be a whole number, 1 or more"):
        Streams(5, 0, 2).sizes(given)
