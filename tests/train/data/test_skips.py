"""Skipped ranges as data: the same numbers stay out on the ranks that found them faulty and on any others."""

import json
from pathlib import Path
from typing import Any

import pytest

from muster.train.checkpoint.skipped_ranges import MOST_RANGES, UnreadableRangesError, packed, unpacked
from muster.train.checkpoint.storage.disk_store import DiskStore
from muster.train.data.segments import Division, without
from muster.train.data.stream_set import Streams
from muster.train.data.streams import SampleStream

NUM_SAMPLES = 1000


def streams_of(num_places: int, batch: int, saved: dict[str, Any], skipped: list[Any]) -> list[Streams]:
    """Return the streams of all places, as a resume makes them."""
    made = [Streams(5, place, num_places) for place in range(num_places)]
    for each in made:
        each.saved = saved
        for documents in skipped:
            each.take_skipped(documents)
        each.stream(each.order("train", NUM_SAMPLES, is_shuffled=False), Division(NUM_SAMPLES, (batch,) * num_places))
    return made


def step(places: list[Streams]) -> list[int]:
    """Let each place draw once; return the samples in the order of places."""
    for each in places:
        each.begin()
    found = [stream_of(each).draw() for each in places]
    for each in places:
        each.end()
        stream_of(each).advance_alike(1)
    return [sample for batch in found for sample in batch]


def stream_of(streams: Streams) -> SampleStream:
    (state,) = streams.document().values()
    division = Division(NUM_SAMPLES, tuple(state["sizes"]))
    return streams.stream(streams.order("train", NUM_SAMPLES, is_shuffled=False), division)


def skipped_at(draw: int) -> tuple[dict[str, Any], list[Any]]:
    """Let three places skip what they drew at one draw. Return their state before it, and the range."""
    places = streams_of(3, 4, {}, [])
    states, marks = [places[0].document()], [places[0].marks()]
    for _ in range(draw + 1):
        step(places)
        states.append(places[0].document())
        marks.append(places[0].marks())
    documents = json.loads(json.dumps(places[0].skip(marks[draw], marks[draw + 1])))
    return states[draw - 2], [documents]


@pytest.mark.parametrize(("num_places", "batch"), [(3, 4), (2, 4), (1, 5), (4, 3)])
def test_skipped_draws_stay_out_on_any_number_of_ranks(num_places: int, batch: int) -> None:
    saved, skipped = skipped_at(9)
    places = streams_of(num_places, batch, saved, skipped)
    drawn = [sample for _ in range(8) for sample in step(places)]
    kept = [number for number in range(84, NUM_SAMPLES) if not 108 <= number < 120]
    assert drawn == kept[: len(drawn)]
    assert len(drawn) > 24, "they pass the range"


def test_a_checkpoint_from_after_the_range_continues_where_it_stood() -> None:
    _, skipped = skipped_at(2)
    places = streams_of(2, 4, skipped_at(9)[0], skipped)
    assert step(places) == list(range(84, 92))


def test_numbers_are_taken_out_in_order() -> None:
    assert without(((3, 6), (8, 10)), 20, [(4, 5), (9, 23)]) == (((3, 4), (5, 6), (8, 9)), 23)
    assert without((), 20, [(24, 26)]) == (((20, 24),), 26)
    assert without(((3, 6),), 20, [(6, 8)]) == (((3, 6),), 20)


def test_each_attempt_writes_its_own_record_and_reads_the_newest_before_it(tmp_path: Path) -> None:
    store = DiskStore(tmp_path)
    assert store.read_skipped(9) is None
    for fence in (3, 12):
        store.write_skipped(fence, packed([{"first": fence}]))
    assert [store.read_skipped(fence) is None for fence in (2, 3)] == [True, False]
    assert unpacked(store.read_skipped(11) or b"") == [{"first": 3}]
    assert unpacked(store.read_skipped(12) or b"") == [{"first": 12}]


def test_a_record_keeps_the_newest_ranges_and_shows_each_change() -> None:
    many = [{"first": number} for number in range(MOST_RANGES + 5)]
    assert unpacked(packed(many)) == many[5:]
    for content in (b"", b"[]", b"{}", packed(many).replace(b"999", b"998"), packed([]).replace(b"1", b"2", 1)):
        with pytest.raises(UnreadableRangesError):
            unpacked(content)
