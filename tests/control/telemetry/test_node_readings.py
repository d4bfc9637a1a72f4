"""The newest readings of a node's GPUs: exact through their packing, each with the report that it came with."""

import math
from datetime import UTC, datetime

import numpy as np
import pytest

from control.telemetry.codec import CodecError
from control.telemetry.latest import READ, Latest, latest_of
from control.telemetry.node_readings import known_in, pack_readings, unpack_readings
from muster.db.queries.telemetry import ReadingsRow
from muster.domain.errors import NotFoundError
from muster.domain.gpu.metrics import NUM_METRICS
from muster.domain.ids import GpuUuid
from muster.wire.telemetry import NodeReport
from tests.control.telemetry.conftest import GPU, OTHER, Stored
from tests.fleet_factory import OPERATOR
from tests.telemetry_reports import reading, report


def latest(stored: Stored, uuid: GpuUuid = GPU) -> Latest:
    with stored.units.begin(OPERATOR, READ, dry_run=True, quiet=True) as unit:
        return latest_of(unit, uuid)


def test_readings_are_exact_through_their_packing() -> None:
    values = np.array([[1 / 3, 2.0**53, -0.0], [math.nan, 1e15, 5e-324]])
    names, found, lost = unpack_readings(pack_readings(["GPU-a", "GPU-ü"], values, [False, True]))
    assert (names, lost) == (("GPU-a", "GPU-ü"), (False, True))
    assert found.astype("<f8").tobytes() == values.astype("<f8").tobytes()


def test_nothing_packed_is_no_gpu() -> None:
    names, values, lost = unpack_readings(b"")
    assert (names, len(values), lost) == ((), 0, ())


@pytest.mark.parametrize("kept", [1, 3, 20, 27])
def test_readings_cut_short_are_reported(kept: int) -> None:
    whole = pack_readings(["GPU-a", "GPU-b"], np.zeros((2, 2)), [False, False])
    with pytest.raises(CodecError):
        unpack_readings(whole[:kept] if kept < 27 else whole[: -len(b"GPU-b") - 1])


def test_metrics_that_the_release_before_did_not_store_are_none() -> None:
    narrow = pack_readings(["GPU-a"], np.ones((1, 2)), [False])
    stored_at = datetime(2026, 1, 1, tzinfo=UTC)
    row = ReadingsRow("nod_a", narrow, None, "boot-1", 16, stored_at, stored_at)
    (known,) = known_in(row).values()
    assert known.values == (1.0, 1.0, *[None] * (NUM_METRICS - 2))


def test_a_counter_keeps_every_digit(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, energy_j=123_456_789_012.0, power_w=0.1)))
    found = latest(stored)
    assert (found.values["energy_j"], found.values["power_w"]) == (123_456_789_012.0, 0.1)
    assert found.values["temperature_c"] is None


def test_a_gpu_that_a_report_leaves_out_keeps_what_was_received_of_it(stored: Stored) -> None:
    first_ms = stored.now_ms
    stored.take(report(16, first_ms, reading(GPU, power_w=1.0), reading(OTHER, power_w=2.0)))
    stored.clock.advance(10)
    stored.take(report(32, stored.now_ms, reading(GPU, power_w=3.0)))
    left, told = latest(stored, OTHER), latest(stored)
    assert (left.seq, left.at.timestamp() * 1000, left.values["power_w"]) == (16, first_ms, 2.0)
    assert (told.seq, told.values["power_w"]) == (32, 3.0)
    assert left.received_at < told.received_at
    stored.clock.advance(10)
    stored.take(report(48, stored.now_ms, reading(OTHER, power_w=4.0), reading(GPU, power_w=5.0)))
    assert {name: seq for name, (_, seq) in stored.latest().items()} == {GPU: 48, OTHER: 48}


def test_a_report_of_the_host_alone_leaves_its_gpus_as_they_were(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0), reading(OTHER, power_w=2.0)))
    stored.take(report(32, stored.now_ms, node=NodeReport(num_gpus=2)))
    stored.take(report(48, stored.now_ms, boot_id="boot-1"))
    assert stored.latest() == {GPU: ("boot-1", 16), OTHER: ("boot-1", 16)}


def test_reports_of_one_group_join_gpu_by_gpu(stored: Stored) -> None:
    stored.take(
        report(16, stored.now_ms, reading(GPU, power_w=1.0), reading(OTHER, power_w=2.0)),
        report(32, stored.now_ms, reading(OTHER, power_w=3.0)),
        report(48, stored.now_ms),
    )
    assert stored.latest() == {GPU: ("boot-1", 16), OTHER: ("boot-1", 32)}


def test_a_gpu_named_twice_in_a_report_is_stored_once(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0), reading(GPU, power_w=2.0)))
    assert stored.latest() == {GPU: ("boot-1", 16)}
    assert latest(stored).values["power_w"] == 2.0


def test_a_lost_gpu_is_reported_as_lost(stored: Stored) -> None:
    gone = reading(GPU)
    stored.take(report(16, stored.now_ms, type(gone)(uuid=GPU, values=gone.values, is_lost=True)))
    assert latest(stored).is_lost
    with pytest.raises(NotFoundError):
        latest(stored, OTHER)


def test_readings_that_cannot_be_read_are_replaced_by_the_next(stored: Stored) -> None:
    stored.take(report(16, stored.now_ms, reading(GPU, power_w=1.0), reading(OTHER, power_w=2.0)))
    with stored.units.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE node_latest SET gpu_readings = '\\x0002001d00'")
    with pytest.raises(NotFoundError):
        latest(stored)
    stored.take(report(32, stored.now_ms, reading(GPU, power_w=3.0)))
    assert stored.latest() == {GPU: ("boot-1", 32)}
    assert latest(stored).values["power_w"] == 3.0
