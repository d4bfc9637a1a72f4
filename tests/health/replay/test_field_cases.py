"""Faults of the field played again on a fleet: what the rules do about a program's own errors, and about a bad GPU."""

from collections.abc import Iterator

import pytest

from health.replay.replay import Replay
from health.replay.stream import Fleet, Input, Moved, Passed, Placed, Sampled
from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from muster.domain.states import Standing
from tests.health.case_factory import DAY, GPU, HOUR, NODE, NOW_MS, POLICY, SECOND, sample, signal

OTHER_GPUS = [GpuUuid(f"GPU-{number}") for number in range(2, 9)]
PEER_ACCESS = "NVLink: TLC RX interrupt hit on link 7 on GPU0: PRIV Error"
CONTAINED = "pid=7321, name=python3, Contained: SM (0x1). RST: No, D-RST: No"


def host_of_eight(*, gpus: list[GpuUuid]) -> Iterator[Input]:
    """A fleet of 64 GPUs, of which ``gpus`` are healthy GPUs of one host."""
    yield Fleet(NOW_MS - DAY, 64)
    yield from (Placed(NOW_MS - DAY, uuid, NODE, Standing.HEALTHY) for uuid in gpus)


def xid(uuid: GpuUuid, code: int, at_ms: int, text: str, source: Source = Source.KERNEL_LOG) -> GpuSignal:
    name = f"{uuid}:{code}:{at_ms}:{source}"
    return GpuSignal(name, EventKind.XID, source, at_ms, NodeId(NODE), gpu_uuid=uuid, code=code, text=text)


def moves(given: Iterator[Input], until_ms: int) -> list[tuple[GpuUuid, Standing]]:
    """All moves, those included that the breaker only proposes."""
    world = Replay(POLICY)
    found = [each for one in given for each in world.take(one)]
    found += world.take(Passed(until_ms))
    return [(each.move.gpu_uuid, each.move.to_standing) for each in found if isinstance(each, Moved)]


def peer_access_crash(uuids: list[GpuUuid], at_ms: int, *, with_nvml: bool) -> Iterator[Input]:
    """A program loses its peer's memory: an XID 137 on each GPU, and within half a second an XID 94 on each."""
    for number, uuid in enumerate(uuids):
        yield xid(uuid, 137, at_ms + 10 * number, PEER_ACCESS)
    for number, uuid in enumerate(uuids):
        if with_nvml:
            yield xid(uuid, 94, at_ms + 400 + 10 * number, "", Source.NVML)
        yield xid(uuid, 94, at_ms + 401 + 10 * number, CONTAINED)


@pytest.mark.parametrize("with_nvml", [False, True])
def test_a_program_that_crashes_on_six_gpus_once_a_day_takes_none_of_them(*, with_nvml: bool) -> None:
    """Three times SUSPECT within the window would be flapping, and so QUARANTINED."""
    six = [GPU, *OTHER_GPUS[:5]]

    def days() -> Iterator[Input]:
        yield from host_of_eight(gpus=[GPU, *OTHER_GPUS])
        for day in range(3):
            yield from peer_access_crash(six, NOW_MS + day * DAY, with_nvml=with_nvml)

    assert moves(days(), NOW_MS + 4 * DAY) == []


def test_a_contained_error_of_bad_memory_still_takes_its_gpu_out() -> None:
    """The line asks for no reset, as for the program's own error: the counter that rises with it decides."""

    def bad_memory() -> Iterator[Input]:
        yield from host_of_eight(gpus=[GPU])
        yield Sampled(NODE, sample(NOW_MS - 10 * SECOND))
        yield xid(GPU, 94, NOW_MS, CONTAINED)
        yield Sampled(NODE, sample(NOW_MS + 5 * SECOND, ecc_uncorrected_volatile=1.0))

    assert moves(bad_memory(), NOW_MS + HOUR) == [(GPU, Standing.QUARANTINED)]


def test_nvmls_word_alone_weighs_as_the_catalogue_states_once_the_log_had_its_time() -> None:
    def wordless() -> Iterator[Input]:
        yield from host_of_eight(gpus=[GPU])
        yield signal(code=94)

    assert moves(wordless(), NOW_MS + HOUR) == [(GPU, Standing.SUSPECT)]
