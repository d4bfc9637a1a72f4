"""Samples are a pure function of seed and position."""

import re
from pathlib import Path

import pytest

from muster.train.data.samples import Samples, sample_at


@pytest.mark.parametrize("num_samples", [1, 2, 3, 5, 64, 65, 1000])
def test_each_epoch_is_a_permutation_of_its_own(num_samples: int) -> None:
    epochs = [
        [sample_at(epoch * num_samples + place, num_samples, 3) for place in range(num_samples)] for epoch in range(3)
    ]
    assert all(sorted(epoch) == list(range(num_samples)) for epoch in epochs)
    if num_samples > 50:
        assert epochs[0] != epochs[1] != epochs[2]
        other_seed = [sample_at(place, num_samples, 4) for place in range(num_samples)]
        assert other_seed != epochs[0]
        still = sum(place == sample for place, sample in enumerate(epochs[0]))
        assert still < num_samples / 10, "it does shuffle"


def test_a_billion_samples_need_no_table() -> None:
    assert 0 <= sample_at(999_999_999, 10**9, 1) < 10**9


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_the_global_batch_is_the_same_for_any_number_of_ranks(world_size: int) -> None:
    ranks = [Samples(7, rank, world_size) for rank in range(world_size)]
    seen = []
    for _ in range(3):
        for rank in ranks:
            seen += rank.indices(100, 8 // world_size)
            rank.advance()
    assert seen == [sample_at(number, 100, 7) for number in range(24)]
    assert {rank.position for rank in ranks} == {24}


@pytest.mark.parametrize(("world_size", "share"), [(1, 8), (4, 2), (8, 1)])
def test_a_batch_of_all_ranks_is_shared_evenly(world_size: int, share: int) -> None:
    assert Samples(7, 0, world_size).share_of(8) == share


@pytest.mark.parametrize(
    ("batch", "reported"), [(1024, "1,008 or 1,032 samples are"), (8, "by 24 ranks: 24 samples are")]
)
def test_a_batch_that_is_not_shared_evenly_is_refused_with_the_nearest_that_are(batch: int, reported: str) -> None:
    with pytest.raises(ValueError, match=reported):
        Samples(7, 0, 24).share_of(batch)


def test_the_batch_of_the_page_on_elastic_jobs_is_shared_by_each_of_its_sizes() -> None:
    page = (Path(__file__).parents[3] / "docs/tenant/elastic.md").read_text(encoding="utf-8")
    batch = int(re.findall(r"run\.share_of\((\d+)\)", page)[0])
    sizes = re.findall(r"With `--nodes \d+ --min-nodes (\d+) --max-nodes (\d+)`", page)
    for num_hosts in range(int(sizes[0][0]), int(sizes[0][1]) + 1):
        for num_gpus in (1, 2, 4, 8):
            assert Samples(7, 0, num_hosts * num_gpus).share_of(batch) * num_hosts * num_gpus == batch


@pytest.mark.parametrize(("num_samples", "batch_size"), [(0, 1), (1, 0)])
def test_nothing_to_choose_from_is_an_error(num_samples: int, batch_size: int) -> None:
    with pytest.raises(ValueError, match="must be 1 or more"):
        Samples(0, 0, 1).indices(num_samples, batch_size)


def test_ranges_that_follow_each_other_are_skipped_in_whatever_order_they_were_found() -> None:
    samples = Samples(5, 0, 1)
    samples.skip(100, 200)
    samples.skip(50, 100)
    samples.position = 50
    samples.begin()
    assert samples.position == 200
