"""A checkpoint unlike the one before it, and a loss unlike the one before a resume, are reported once."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.train.checkpoint import manifest
from muster.train.checkpoint.continuity import Continuity, loss_anomaly, size_anomaly, volume_anomaly
from muster.train.checkpoint.manifest import FileRecord, Manifest
from muster.train.checkpoint.volume import Volume
from muster.train.report.wire import Channel


class Received(Channel):
    def __init__(self) -> None:
        super().__init__(None)
        self.codes: list[object] = []
        self.words: list[object] = []

    def send(self, kind: str, **fields: object) -> None:
        assert kind == "warning"
        self.codes.append(fields["code"])
        self.words.append(fields["message"])


def saved(*, loss: float | None = 2.0, spread: float | None = 0.1, num_bytes: int = 1000, ranks: int = 1) -> Manifest:
    files = tuple(FileRecord(manifest.file_name(rank), rank, num_bytes // ranks, "0" * 64) for rank in range(ranks))
    return Manifest(5, 1, "att_1", 0, ranks, 0, "2.13.0", loss, 0.1, files, spread)


@pytest.mark.parametrize(
    ("num_bytes", "word"), [(9_400_000, "6% smaller"), (10_600_000, "6% larger"), (0, "100% smaller")]
)
def test_a_size_beyond_five_per_cent_is_reported(num_bytes: int, word: str) -> None:
    assert word in size_anomaly(num_bytes, 10_000_000)


@given(st.integers(9_500_000, 10_500_000))
def test_a_size_within_is_not(num_bytes: int) -> None:
    assert size_anomaly(num_bytes, 10_000_000) == ""
    assert size_anomaly(num_bytes, 0) == "", "nor is the first"
    assert size_anomaly(60_000, 1000) == "", "nor what is little in any case"


@given(st.floats(-100, 100), st.floats(0, 10), st.floats(-1, 1))
def test_a_loss_within_its_deviations_or_two_per_cent_is_not_reported(
    saved_loss: float, spread: float, by: float
) -> None:
    allowed = max(3 * spread, 0.02 * abs(saved_loss))
    assert loss_anomaly(saved_loss + by * allowed * 0.999, saved_loss, spread) == ""
    assert loss_anomaly(saved_loss + allowed * 1.01 + 0.01, saved_loss, spread) != ""


def test_what_lost_a_part_is_reported_once_by_the_first_rank_alone() -> None:
    first, second = Received(), Received()
    for rank, heard in enumerate((first, second)):
        continuity = Continuity(heard, rank)
        for num_bytes in (1_000_000, 1_001_000, 600_000, 600_000, 1_000_000):
            continuity.note_saved(5, [num_bytes])
    assert first.codes == ["checkpoint_size"]
    assert second.codes == []


def test_a_rank_whose_part_shrank_is_named_though_the_whole_is_alike() -> None:
    heard = Received()
    continuity = Continuity(heard, 0)
    continuity.note_saved(5, [2_000_000, 2_000_000, 50_000_000])
    continuity.note_saved(10, [2_000_000, 1_000_000, 50_000_000])
    assert heard.codes == ["checkpoint_size"]
    words = "holds a part of rank 1 that is 50% smaller than the one before, 1,000,000 bytes after 2,000,000"
    assert heard.words == [f"the checkpoint of step 10 {words}: has its state lost a part?"]


def test_parts_are_not_compared_over_a_resume_which_may_have_shared_the_state_out_otherwise() -> None:
    heard = Received()
    continuity = Continuity(heard, 0)
    continuity.resumed(saved(num_bytes=2_000_000, ranks=2), 2)
    continuity.note_saved(10, [500_000, 1_500_000])
    continuity.note_saved(15, [500_000, 1_500_000])
    assert heard.codes == []


@pytest.mark.parametrize(
    ("sizes", "state_bytes", "word"),
    [
        ([1_001_000, 1_001_000], 1_500_000, ""),
        ([1_001_000, 1_001_000], 2_000_000, "1,500,000 bytes of model and optimizer, whose tensors are 2,000,000"),
        ([1_001_000, 1_001_000], 1_000_000, "1,500,000 bytes of model and optimizer, whose tensors are 1,000,000"),
        ([1_001_000, 999_999], None, "999,999 bytes of rank 1, whose tensors are 1,000,000"),
        ([1_101_000, 1_001_000], None, "1,101,000 bytes of rank 0, whose tensors are 1,000,000: is one of them a view"),
    ],
)
def test_the_first_one_is_compared_with_the_tensors_of_its_state(
    sizes: list[int], state_bytes: int | None, word: str
) -> None:
    volumes = [Volume(750_000, 1_000_000, 1_002_000)] * 2
    found = volume_anomaly(sizes, volumes, state_bytes)
    assert found.startswith(f"holds {word}") if word else found == ""
    heard = Received()
    Continuity(heard, 0).note_saved(5, sizes, volumes, state_bytes)
    assert heard.codes == (["checkpoint_volume"] if word else [])


def test_what_states_its_own_size_in_a_file_has_no_most() -> None:
    assert volume_anomaly([9_000_000], [Volume(0, 1_000_000, None)], None) == ""


@pytest.mark.parametrize(
    ("about", "loss", "codes"),
    [
        (saved(), 2.25, []),
        (saved(), 2.5, ["loss_jump"]),
        (saved(), 1.5, ["loss_jump"]),
        (saved(spread=None), 9.0, []),
        (saved(loss=None), 9.0, []),
        (saved(), None, []),
    ],
)
def test_the_first_loss_after_a_resume_is_checked_and_no_other(
    about: Manifest, loss: float | None, codes: list[str]
) -> None:
    heard = Received()
    continuity = Continuity(heard, 0)
    continuity.resumed(about, 1)
    continuity.note_loss(loss)
    continuity.note_loss(99.0)
    assert heard.codes == codes


def test_a_resumed_size_is_compared_on_as_many_ranks_alone() -> None:
    for ranks, codes in ((1, ["checkpoint_size"]), (2, [])):
        heard = Received()
        continuity = Continuity(heard, 0)
        continuity.resumed(saved(ranks=ranks), 1)
        continuity.note_saved(10, [200_000])
        assert heard.codes == codes


def test_the_spread_is_of_the_newest_losses_and_of_enough_of_them() -> None:
    continuity = Continuity(Received(), 0)
    chance = random.Random(1)  # noqa: S311  # a test's noise
    for number in range(200):
        assert (continuity.spread is None) == (number < 8)
        continuity.note_loss(5.0 - number / 100 + chance.gauss(0, 0.1))
    assert continuity.spread == pytest.approx(0.13, abs=0.05)


def test_a_manifest_of_before_has_no_spread_and_is_read() -> None:
    document = manifest.dump(saved())
    assert manifest.parse(document) == saved()
    body = {name: value for name, value in json.loads(document).items() if name != "self_sha256"}
    del body["loss_spread"]
    older = json.dumps({**body, "self_sha256": manifest._self_hash(body)}).encode()
    assert manifest.parse(older) == saved(spread=None)
