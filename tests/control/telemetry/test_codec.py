"""Samples come back out of blocks and chunks as they went in, to the precision of float32, in whatever order."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.telemetry.codec import (
    CodecError,
    matrix_of,
    pack_block,
    pack_segment,
    unpack_block,
    unpack_segment,
    values_of,
)
from control.telemetry.downsample import downsample
from control.telemetry.hours import HOUR_MS, NodeHour, hour_from_blocks, join_hours, pack_hour, unpack_hour
from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA

VALUE = st.none() | st.floats(-(2.0**49), 2.0**49, width=32)
ROW = st.lists(VALUE, min_size=NUM_METRICS, max_size=NUM_METRICS)
UUIDS = st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20), unique=True)


@given(st.data(), UUIDS)
def test_a_block_comes_back_as_it_was(data: st.DataObject, uuids: list[str]) -> None:
    rows = [data.draw(ROW) for _ in uuids]
    matrix = matrix_of(rows).reshape(len(rows), NUM_METRICS)
    block = unpack_block(pack_block(uuids, matrix), SCHEMA)
    assert block.gpu_uuids == tuple(uuids)
    assert [values_of(row) for row in block.values] == [tuple(row) for row in rows]


@given(st.lists(ROW, max_size=5))
def test_a_segment_comes_back_as_it_was(rows: list[list[float | None]]) -> None:
    matrix = matrix_of(rows).reshape(len(rows), NUM_METRICS).astype(np.float32)
    back = unpack_segment(pack_segment(matrix), len(rows), SCHEMA)
    assert np.array_equal(back, matrix, equal_nan=True)


@given(st.binary(max_size=200))
def test_bytes_that_are_none_of_ours_are_stated_to_be_so(content: bytes) -> None:
    good = pack_block(["GPU-0"], np.zeros((1, NUM_METRICS)))
    for bad in (content, good[:-1], good + b"x"):
        with pytest.raises(CodecError):
            unpack_block(bad, SCHEMA)
    with pytest.raises(CodecError):
        unpack_segment(content, 3, SCHEMA)
    with pytest.raises(CodecError):
        unpack_block(good, SCHEMA + 1)


SAMPLES = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1), st.floats(0, 9)),
    min_size=1,
    max_size=12,
)


@given(SAMPLES, st.randoms(use_true_random=False), st.integers(0, 12))
def test_an_hour_is_the_same_in_whatever_order_and_however_often_it_comes(
    samples: list[tuple[int, list[str], float]], rng: random.Random, cut: int
) -> None:
    blocks = [
        (HOUR_MS + second * 1000 + 7, unpack_block(pack_block(gpus, np.full((len(gpus), NUM_METRICS), value)), SCHEMA))
        for second, gpus, value in samples
    ]
    whole = hour_from_blocks(blocks, NUM_METRICS)
    shuffled = [*blocks, *rng.choices(blocks, k=3)]
    rng.shuffle(shuffled)
    parts = [hour_from_blocks(part, NUM_METRICS) for part in (shuffled[:cut], shuffled[cut:]) if part]
    joined = join_hours([_stored(part) for part in parts], NUM_METRICS)
    assert joined.gpu_uuids == whole.gpu_uuids
    assert np.array_equal(joined.seconds, whole.seconds)
    assert np.array_equal(joined.values, whole.values, equal_nan=True)


def _stored(hour: NodeHour) -> NodeHour:
    return unpack_hour(pack_hour(hour), SCHEMA, NUM_METRICS)


def test_points_follow_the_kind_of_the_metric() -> None:
    bins = np.array([0, 0, 0, 2, 2])
    values = np.array([1.0, 2.0, np.nan, 8.0, 4.0])
    assert downsample("gauge", bins, values, 3) == [1.5, None, 6.0]
    assert downsample("counter", bins, values, 3) == [2.0, None, 4.0]
    assert downsample("flags", bins, values, 3) == [3.0, None, 12.0]


def test_a_point_has_the_digits_of_float32() -> None:
    values = np.array([0.1, 123456.78, 0.0], dtype=np.float32)
    assert downsample("gauge", np.arange(3), values, 3) == [0.1, 123456.8, 0.0]
