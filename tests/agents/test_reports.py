"""What the agent puts on the wire: fit for JSON and databases, open events repeated until they end, growing numbers."""

import math

import msgspec

from agents.probes.interface import GpuCheck, ProbeEvent
from agents.reports import Numbering, OpenEvents, event_report, gpu_report, sample_report
from muster.domain.evidence.findings import EventKind, Source
from muster.domain.gpu.metrics import NUM_METRICS
from muster.domain.ids import GpuUuid
from muster.wire.telemetry import Report
from tests.agents.reports import BOOT

UUID = GpuUuid("GPU-1")


def _event(kind: EventKind, origin: str = "o", **changes: object) -> ProbeEvent:
    fields = {"origin": origin, "kind": kind, "source": Source.AGENT, "at_ms": 5, "gpu_uuid": UUID, **changes}
    return ProbeEvent(**fields)  # type: ignore[arg-type]


def test_numbers_that_json_cannot_hold_are_none() -> None:
    values = (math.nan, math.inf, 1e16, 1.5, *(None,) * (NUM_METRICS - 4))
    report = gpu_report(GpuCheck(gpu_uuid=UUID, index=0, at_ms=1, values=values))
    assert report.values[:4] == [None, None, None, 1.5]


def test_whatever_a_driver_states_the_server_can_read() -> None:
    wild = _event(
        EventKind.XID,
        origin="x" * 500,
        text="a\x00b\ud800" + "c" * 5000,
        code=10**9,
        source=Source.BURN_IN,
        values={"v\x00": 1.0, "bad": math.nan},
        at_ms=-5,
    )
    said = sample_report((), None, (event_report(wild, BOOT, is_open=False),), boot_id=BOOT, seq=1, at_ms=1)
    (back,) = msgspec.json.decode(msgspec.json.encode(said), type=Report).events
    assert len(back.event_id) <= 200
    assert (back.code, back.source, back.at_ms) == (None, "agent", 0)
    assert "\x00" not in back.text
    assert back.values == {"v\ufffd": 1.0}
    other = event_report(_event(EventKind.XID, origin="x" * 501), BOOT, is_open=False)
    assert other.event_id != back.event_id


def test_a_lost_gpu_is_open_until_it_is_found() -> None:
    events = OpenEvents()
    (lost,) = events.take(_event(EventKind.GPU_LOST, "1"), BOOT)
    assert lost.is_open
    assert list(events) == [lost]
    closed, found = events.take(_event(EventKind.GPU_FOUND, "2"), BOOT)
    assert (closed.event_id, closed.is_open, found.kind) == (lost.event_id, False, "gpu_found")
    assert list(events) == []


def test_a_wrong_count_is_open_until_the_usual_one_is_back() -> None:
    events = OpenEvents()
    count = [
        events.take(_event(EventKind.GPU_COUNT, str(now), gpu_uuid=None, values={"before": before, "now": now}), BOOT)
        for before, now in ((8.0, 7.0), (7.0, 6.0), (6.0, 8.0))
    ]
    assert [[event.is_open for event in said] for said in count] == [[True], [False, True], [False, False]]
    assert list(events) == []


def test_an_xid_is_stated_once() -> None:
    events = OpenEvents()
    (xid,) = events.take(_event(EventKind.XID, code=94), BOOT)
    assert not xid.is_open
    assert list(events) == []


def test_numbers_grow_across_lives_of_one_boot_and_leave_room_for_gap_reports() -> None:
    first = Numbering(0, 16)
    numbers = [first.next(1000), first.next(1000), first.next(2000)]
    again = Numbering(numbers[-1], 16)
    numbers.append(again.next(2000))
    assert numbers == sorted(set(numbers))
    assert all(number % 16 == 0 for number in numbers)
    assert Numbering(16 * 5 + 3, 16).next(0) == 16 * 6
