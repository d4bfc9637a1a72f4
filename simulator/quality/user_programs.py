"""Programs of users that crash: XIDs 13, 31 and 43 by their own fault, each with the clean-up (45) after it.

It is assumed that a node has one job on average. So 12,500 nodes give 9,000,000 job-hours in 30 days, and 2 crashes in
1,000 job-hours give 18,000 crashes. They do not come alone: a faulty program is started again, on the same GPUs, until
a person looks into it. ``ROWS`` lists how many crashes such a row has.
"""

from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from muster.domain.evidence.findings import EventKind, GpuSignal, Source
from muster.domain.ids import GpuUuid, NodeId
from simulator.quality.fault_classes import PCI, logged

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
GPUS: Final = 8
CRASHES_PER_JOB_HOUR: Final = 0.002
ROWS: Final = (1, 1, 2, 4, 8, 20, 60)
"""Crashes of one program in a row; each as likely."""
EVERY_MS: Final = 1_800_000
"""The mean pause between a crash and the next."""
WHOLE_NODE_SHARE: Final = 0.25
"""Share of programs that all GPUs of the node report."""
_XID_TEXTS: Final[Mapping[int, str]] = {
    13: "pid=4711, name=python3, Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM 0): Out Of Range Address",
    31: "pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    43: "pid=4711, name=python3, Ch 00000010",
    45: "pid=4711, name=python3, Ch 00000010",
}


class Affected(NamedTuple):
    """The node of an event, and the GPU if the event is about one."""

    node_id: NodeId
    gpu_uuid: GpuUuid | None = None


def crashes_of(rng: Random, num_nodes: int, num_days: float, start_ms: int, span_ms: int) -> Iterator[GpuSignal]:
    """Yield crashes row by row, until there are as many as so many jobs have."""
    left = round(CRASHES_PER_JOB_HOUR * 24 * num_days * num_nodes)
    while left > 0:
        in_a_row = min(left, rng.choice(ROWS))
        left -= in_a_row
        yield from _row(rng, in_a_row, num_nodes, start_ms, span_ms)


def _row(rng: Random, in_a_row: int, num_nodes: int, start_ms: int, span_ms: int) -> Iterator[GpuSignal]:
    """Yield one program's crashes: the same code, in the same unit of the same GPUs, for each start."""
    node_id, gpu = place(rng, num_nodes)
    code, at_ms = rng.choice((13, 31, 43)), start_ms + rng.randrange(span_ms)
    words = {"gpc": rng.randrange(8), "tpc": rng.randrange(9)}
    node = node_id.removeprefix("node_")
    whole = rng.random() < WHOLE_NODE_SHARE
    gpus = [GpuUuid(f"GPU-{node}-{index}") for index in range(GPUS)] if whole else [gpu]
    for _ in range(in_a_row):
        for each in gpus:
            affected = Affected(node_id, each)
            yield _line(rng, code, at_ms, affected, words)
            yield _line(rng, 45, at_ms + rng.randrange(3_000), affected, words)
        at_ms += int(rng.expovariate(1 / EVERY_MS)) + 1
        if at_ms >= start_ms + span_ms:
            return


def _line(rng: Random, code: int, at_ms: int, affected: Affected, words: Mapping[str, int]) -> GpuSignal:
    told = logged(f"[ 812.5] NVRM: Xid (PCI:{PCI}): {code}, {_XID_TEXTS[code].format_map(words)}")
    return signal(rng, told.kind, at_ms, affected, code=told.code, text=told.text)


def place(rng: Random, num_nodes: int) -> tuple[NodeId, GpuUuid]:
    node = rng.randrange(num_nodes)
    return NodeId(f"node_{node}"), GpuUuid(f"GPU-{node}-{rng.randrange(GPUS)}")


def signal(
    rng: Random,
    kind: EventKind,
    at_ms: int,
    affected: Affected,
    *,
    code: int | None = None,
    text: str = "",
    source: Source = Source.KERNEL_LOG,
    values: Mapping[str, float] = MappingProxyType({}),
) -> GpuSignal:
    node_id, gpu_uuid = affected
    name = f"{at_ms}:{node_id}:{gpu_uuid}:{kind}:{code}:{rng.getrandbits(48):x}"
    return GpuSignal(name, kind, source, at_ms, node_id, gpu_uuid=gpu_uuid, code=code, text=text, values=values)
