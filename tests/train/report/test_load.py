"""Samples, tokens and padding of one rank: means of a step over what was counted since the last message."""

from muster.train.data.cursors import Cursors
from muster.train.data.samples import Samples
from muster.train.report.load import Load


def test_nothing_is_notified_of_what_the_program_did_not_state() -> None:
    load = Load()
    load.note(samples=None, tokens=None)
    load.end()
    assert load.word() == {"samples": None, "samples_per_step": None, "tokens_per_step": None, "padding": None}


def test_means_are_of_a_step_and_samples_of_the_whole_attempt() -> None:
    load = Load()
    for _ in range(4):
        load.note(samples=2, tokens=300)
        load.note(tokens=90, padded=10)
        load.end()
    assert load.word() == {"samples": 8, "samples_per_step": 2.0, "tokens_per_step": 390.0, "padding": 0.025}
    load.note(samples=3)
    load.end()
    assert load.word() == {"samples": 11, "samples_per_step": 3.0, "tokens_per_step": None, "padding": None}


def test_a_count_below_zero_makes_no_report_that_would_be_refused() -> None:
    load = Load()
    load.note(samples=-3, tokens=-5, padded=10)
    load.end()
    assert load.word() == {"samples": 0, "samples_per_step": 0.0, "tokens_per_step": 0.0, "padding": 1.0}


def test_a_rank_counts_its_own_share_of_each_step() -> None:
    samples = Samples(seed=1, rank=1, world_size=4)
    samples.indices(100, 8)
    assert (samples.advance(), samples.position) == (8, 32)
    assert (samples.advance(), samples.position) == (None, 32), "a step that asked for none"


def test_epochs_of_the_program_come_before_those_of_the_samples_that_the_run_chose() -> None:
    load = Load()
    load.end()
    assert "epochs" not in load.word(), "none are known"
    assert load.word(0.5)["epochs"] == 0.5
    for wrong in (-1.0, float("nan"), float("inf")):
        load.note_epochs(wrong)
    assert load.word(0.5)["epochs"] == 0.5
    load.note_epochs(2)
    assert load.word(0.5)["epochs"] == 2.0


def test_epochs_follow_the_position_of_all_ranks() -> None:
    cursors = Cursors(1, 1, 4)
    assert cursors.epochs is None
    cursors.begin()
    cursors.indices(64, 8)
    cursors.advance()
    assert cursors.epochs == 0.5
    cursors.roll_back(16, {})
    assert cursors.epochs == 0.25


def test_epochs_of_a_stream_count_the_part_of_the_one_in_progress() -> None:
    cursors = Cursors(1, 0, 1)
    stream = cursors.stream("train", 8, 4, shuffle=True, endless=False, drop_last=False)
    assert cursors.epochs is None, "nothing was drawn"
    for expected in (0.5, 1.0, 1.5):
        cursors.begin()
        stream.draw()
        cursors.advance()
        stream.advance_alike(1)
        assert cursors.epochs == expected
