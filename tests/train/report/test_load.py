"""Samples, tokens and padding of one rank: means of a step over what was counted since the last message."""

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
