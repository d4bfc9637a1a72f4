"""M8: bytes through ports by the job that ran alone on the host, over NVLinks by GPU, before and after compaction."""

import numpy as np
import pytest

from control.ledger.figure_rows import Group, Tally, rows_of
from control.ledger.gpu_figures import count_gpus_once
from control.ledger.sample_figures import Use, Uses, add_host, metrics_read
from control.telemetry.codec import no_ports
from control.telemetry.compaction import compact_once
from control.telemetry.hours import NodeHour
from muster.domain.gpu.metrics import NUM_METRICS, WIDTHS
from muster.domain.ids import NodeId, TenantId
from muster.domain.times import to_ms
from muster.wire.telemetry import NodeReport, PortThroughput, Report
from tests.control.ledger.figure_case import Lived, member_of
from tests.control.telemetry.conftest import GPU, OTHER, Stored
from tests.telemetry_reports import reading, report

NVLINK = {"nvlink_sent_bytes_per_s": 3e9, "nvlink_received_bytes_per_s": 1e9}
HOST = NodeId("node_0")


def sample(placed: Lived, number: int, *ports: PortThroughput) -> Report:
    """Return the report of ten seconds, with NVLink's rates of both GPUs."""
    at_ms = to_ms(placed.begin) + 10_000 * number
    gpus = (reading(GPU, **NVLINK), reading(OTHER, **NVLINK))
    return report(number, at_ms, *gpus, is_history=True, node=NodeReport(port_throughput=ports))


def test_a_job_alone_on_its_host_has_the_bytes_of_all_ports(stored: Stored, placed: Lived) -> None:
    stored.clock.now = placed.at(30)
    quiet = [sample(placed, number, PortThroughput("mlx5_0/1", 4e9, 1e9, 400.0)) for number in range(30)]
    burst = [
        sample(placed, number, PortThroughput("mlx5_0/1", 1e9, 45e9, 400.0), PortThroughput("eth0", 0.0, 1e9, None))
        for number in range(30, 40)
    ]
    stored.take(*quiet, *burst)
    stored.clock.now = placed.at(121)
    assert count_gpus_once(stored.units)
    (series,) = [one for one in placed.answer("network_throughput", by="tenant").series if one.group]
    sums = series.whole.sums
    assert series.whole.value == pytest.approx((30 * 5 + 10 * 47) / 40)
    assert {part: one.num for part, one in sums.items()} == dict.fromkeys(("alone", "sent", "received"), 40)
    totals = {part: one.total for part, one in sums.items()}
    assert totals == pytest.approx({"alone": 620, "sent": 130, "received": 490})
    assert sums["alone"].sketch.percentile(0.5) == pytest.approx(5, rel=0.01)
    assert sums["alone"].sketch.percentile(0.99) == pytest.approx(47, rel=0.01)
    saturation = placed.answer("network_saturation").series[0].whole
    assert saturation.value == pytest.approx((30 * 0.08 + 10 * 0.9) / 40), "the port of unknown speed is left out"
    assert saturation.sums["alone"].sketch.percentile(0.99) == pytest.approx(0.9, rel=0.01)
    assert placed.nums("nvlink_throughput") == {"assigned": 40, "sent": 40, "received": 40, "free": 40}
    assert placed.value("nvlink_throughput") == pytest.approx(4)
    assert placed.nums("network_throughput", reader=member_of(TenantId("ten_other"))) == {}, "another tenant's"


def test_hours_are_the_same_after_compaction_and_without_gpus(stored: Stored, placed: Lived) -> None:
    """A driver that is away reports no GPU, and the host's ports all the same."""
    stored.clock.now = placed.at(30)
    stored.take(*(sample(placed, number, PortThroughput("eth0", 1e9, 0.0, 100.0)) for number in range(30)))
    alone = NodeReport(port_throughput=(PortThroughput("eth0", 3e9, 0.0, 100.0),))
    stored.take(report(50, to_ms(placed.begin) + 500_000, is_history=True, node=alone))
    stored.clock.now = placed.at(121)
    assert count_gpus_once(stored.units)
    before = placed.facts()
    assert placed.value("network_throughput") == pytest.approx(33 / 31)
    stored.clock.now = placed.at(180)
    assert compact_once(stored.units) == 1
    assert count_gpus_once(stored.units)
    assert placed.facts() == before


def hour_of(rates: list[float], schema: int | None = None) -> NodeHour:
    """Return an hour of two GPUs and one port that sends so many GB/s, a sample a second."""
    seconds = np.arange(len(rates), dtype=np.int64)
    values = np.full((2, len(rates), NUM_METRICS if schema is None else WIDTHS[schema]), 7.0, dtype=np.float32)
    if schema is not None:
        return NodeHour(seconds, ("a", "b"), values, (), no_ports(len(rates)))
    ports = np.array([(rate * 1e9, 0.0, 100e9) for rate in rates], dtype=np.float32).reshape(1, len(rates), 3)
    return NodeHour(seconds, ("a", "b"), values, ("eth0",), ports)


def parts_of(hour: NodeHour, uses: Uses) -> dict[tuple[str, str, str], tuple[int, float]]:
    tally = Tally()
    add_host(tally, HOST, metrics_read(hour), uses)
    return {
        (row["figure"], row["part"], row["tenant_id"]): (row["num"], round(row["total"], 3)) for row in rows_of(tally)
    }


def test_a_host_of_two_jobs_is_nobodys_until_one_of_them_has_left() -> None:
    uses = Uses()
    for gpu, attempt, start, end in (("a", "first", 0, 4), ("b", "second", 2, 6), ("b", "first", 0, 1)):
        uses.add(HOST, gpu, Use(attempt, start, end, Group(TenantId(attempt))))
    found = parts_of(hour_of([1, 1, 5, 5, 10, 10, 30, 30]), uses)
    assert {key[1:]: value for key, value in found.items() if key[0] == "network_throughput" and key[1] != "sent"} == {
        ("alone", "first"): (2, 2.0),
        ("shared", ""): (2, 10.0),
        ("alone", "second"): (2, 20.0),
        ("free", ""): (2, 60.0),
        ("received", "first"): (2, 0.0),
        ("received", "second"): (2, 0.0),
    }
    assert found["network_saturation", "free", ""] == (2, 0.6)


def test_samples_of_earlier_schemas_count_without_what_they_lack() -> None:
    for schema in (1, 2):
        found = parts_of(hour_of([1.0, 2.0], schema), Uses())
        assert found == {("gpu_utilisation", "free", ""): (4, 28.0)}


def test_no_sample_and_no_link_speed_give_no_number() -> None:
    assert parts_of(hour_of([]), Uses()) == {}
    unknown = hour_of([5.0, 500.0])
    unknown.port_values[0, 0, 2] = np.nan
    assert parts_of(unknown, Uses())["network_saturation", "free", ""] == (1, 1.0), "a share is at most the whole"


def test_a_negative_sample_counts_nowhere_and_stops_no_hour() -> None:
    """A driver's or an agent's fault: the report is taken, and the value is none."""
    hour = hour_of([1.0, 2.0])
    hour.values[0] = -5.0
    uses = Uses()
    uses.add(HOST, "a", Use("first", 0, 2, Group(TenantId("first"))))
    uses.add(HOST, "b", Use("first", 0, 2, Group(TenantId("first"))))
    found = parts_of(hour, uses)
    assert found["gpu_utilisation", "assigned", "first"] == (2, 14.0), "of the other GPU"
    assert found["nvlink_throughput", "assigned", "first"] == (2, 0.0)
    assert found["network_throughput", "alone", "first"] == (2, 3.0)
