"""Samples come back out of blocks and chunks as they went in, to the precision of float32, in whatever order."""

import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.telemetry.codec import (
    PORT_WIDTH,
    SECONDS_AN_HOUR,
    CodecError,
    Port,
    matrix_of,
    pack_block,
    pack_ports,
    pack_segment,
    unpack_block,
    unpack_ports,
    unpack_segment,
    values_of,
)
from control.telemetry.downsample import downsample
from control.telemetry.hours import HOUR_MS, NodeHour, hour_from_blocks, join_hours, pack_hour, unpack_hour
from muster.domain.gpu.metrics import NUM_METRICS, SCHEMA
from muster.wire.telemetry import MAX_PORT_NAME, MAX_PORTS

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


RATE = st.floats(0, 2.0**40, width=32)
PORTS = st.lists(
    st.tuples(st.sampled_from(["eth0", "mlx5_0/1", "p"]), RATE, RATE, RATE), unique_by=lambda port: port[0]
)


@given(PORTS, st.integers(0, 1))
def test_a_block_holds_the_hosts_ports_with_and_without_gpus(ports: list[Port], num_gpus: int) -> None:
    uuids = ["GPU-0"][:num_gpus]
    packed = pack_block(uuids, np.full((len(uuids), NUM_METRICS), 7.0), ports)
    block = unpack_block(packed, SCHEMA)
    assert (block.gpu_uuids, block.values.shape) == (tuple(uuids), (len(uuids), NUM_METRICS))
    assert [(name, *row) for name, row in zip(block.ports, block.port_values.tolist(), strict=True)] == ports
    for end in range(len(pack_block(uuids, np.zeros((len(uuids), NUM_METRICS)))) + 1, len(packed)):
        with pytest.raises(CodecError):
            unpack_block(packed[:end], SCHEMA)


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
    with pytest.raises(CodecError):
        unpack_ports(content, 3)


SAMPLES = st.lists(
    st.tuples(st.integers(0, 6), st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1), st.floats(0, 9)),
    min_size=1,
    max_size=12,
)


def matrix(gpus: list[str], value: float) -> npt.NDArray[np.float64]:
    return np.full((len(gpus), NUM_METRICS), value)


def ports(gpus: list[str], value: float) -> list[Port]:
    """Return a port for each GPU but the last, so that some blocks have none."""
    return [(f"port-{uuid}", value, value / 2, np.nan) for uuid in gpus[:-1]]


@given(SAMPLES, st.randoms(use_true_random=False), st.integers(0, 12))
def test_an_hour_is_the_same_in_whatever_order_and_however_often_it_comes(
    samples: list[tuple[int, list[str], float]], rng: random.Random, cut: int
) -> None:
    blocks = [
        (HOUR_MS + second * 1000 + 7, unpack_block(pack_block(gpus, matrix(gpus, value), ports(gpus, value)), SCHEMA))
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
    assert joined.ports == whole.ports
    assert np.array_equal(joined.port_values, whole.port_values, equal_nan=True)


def of_ports(names: list[str], second: int) -> NodeHour:
    """Return the hour of one report of a host without GPUs, whose ports have such names."""
    packed = pack_block([], np.zeros((0, NUM_METRICS)), [(name, float(second), 0.0, np.nan) for name in names])
    return hour_from_blocks([(HOUR_MS + second * 1000, unpack_block(packed, SCHEMA))], NUM_METRICS)


def test_an_hour_keeps_its_first_ports_however_many_names_a_host_sends() -> None:
    """Names are the agent's: each report may have others."""
    names = [f"port-{number:05}" for number in range(MAX_PORTS * 40)]
    reports = [of_ports(names[start : start + MAX_PORTS], start) for start in range(0, len(names), MAX_PORTS)]
    whole = join_hours(reports, NUM_METRICS)
    assert whole.ports == tuple(names[:MAX_PORTS])
    assert np.nanmax(whole.port_values[:, :, 0]) == 0, "no value of a port that is left out"
    halves = [join_hours(half, NUM_METRICS) for half in (reports[20:], reports[:20])]
    joined = join_hours([_stored(half) for half in halves], NUM_METRICS)
    assert (joined.ports, len(joined.seconds)) == (whole.ports, len(whole.seconds))
    assert np.array_equal(joined.port_values, whole.port_values, equal_nan=True)


def test_one_block_of_too_many_ports_keeps_the_first() -> None:
    names = [f"port-{number:05}" for number in reversed(range(MAX_PORTS + 9))]
    found = of_ports(names, 0)
    assert found.ports == tuple(sorted(names)[:MAX_PORTS])


def test_an_hour_of_the_longest_names_and_all_seconds_can_be_read() -> None:
    names = tuple(f"{number:02}".ljust(MAX_PORT_NAME, "\N{GRINNING FACE}") for number in range(MAX_PORTS))
    values = np.random.default_rng(1).random((MAX_PORTS, SECONDS_AN_HOUR, PORT_WIDTH), dtype=np.float32)
    found, back = unpack_ports(pack_ports(names, values), SECONDS_AN_HOUR)
    assert found == names
    assert np.array_equal(back, values)


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
