"""The fault timeline: the root first, joined with what was measured of the same host and time."""

import time

import pytest

from muster.domain.exit.fault_lines import FAULT_LINES, Role
from watch.lines.findings import read_line
from watch.lines.timeline import MOST_PARTS, HostLine, Measured, timeline_of

AT_MS = 1_790_000_000_000
RETRIES_OF_2024 = "n1:98:12 [3] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 12, opcode 129"
PORT_ERROR_OF_2020 = "n1:98:12 [3] NCCL WARN NET/IB : mlx5_4:1 Got async event : port error"
CONTAINED = (
    "[rank3]: torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"
)
FLUSHED = "n2:98:12 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.8<40112> with error 5, opcode 129"
TIMEOUT = (
    "[rank1]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=12, OpType=ALLREDUCE)"
)


def line(text: str, node: str = "node-a", *, rank: int = 0, at_ms: int = AT_MS, count: int = 1) -> HostLine:
    found = read_line(text, rank=rank)
    assert found is not None, text
    return HostLine(
        node, found.name, found.role, found.text, found.rank, found.peer, found.port, found.hca, count, at_ms, at_ms
    )


def test_a_port_that_was_down_and_the_older_words_of_nccl_are_one_timeline_over_two_hosts() -> None:
    """Case health/15: the words of NCCL before ``status=``."""
    lines = [
        line(TIMEOUT, "node-b", rank=1, at_ms=AT_MS - 50_000),  # the clock of node-b is behind
        line(FLUSHED, "node-b", at_ms=AT_MS - 60_000, count=8),
        line(RETRIES_OF_2024, "node-a", rank=3),
    ]
    port = Measured("node-a", "port_down", "port mlx5_4/1 is down", AT_MS - 4_000, port="mlx5_4/1")
    timeline = timeline_of(lines, [port])
    assert timeline is not None
    assert [(part.role, part.node) for part in timeline.parts] == [
        ("root", "node-a"), ("measured", "node-a"), ("cascade", "node-b"), ("symptom", "node-b"),
    ]  # fmt: skip
    assert [part.is_root for part in timeline.parts] == [True, False, False, False]
    assert timeline.sentence.startswith("Rank 3 on node-a printed: ")
    assert "measured on node-a: port mlx5_4/1 is down; 9 lines of cascades and symptoms followed." in timeline.sentence


@pytest.mark.parametrize("text", [RETRIES_OF_2024, PORT_ERROR_OF_2020, CONTAINED])
def test_each_root_of_an_older_nccl_goes_before_its_cascades(text: str) -> None:
    timeline = timeline_of([line(FLUSHED, "node-b", at_ms=AT_MS - 9_000), line(text)], [])
    assert timeline is not None
    assert timeline.root is not None
    assert (timeline.root.node, timeline.root.role) == ("node-a", "root")


def test_cascades_and_symptoms_alone_have_no_root() -> None:
    timeline = timeline_of([line(FLUSHED, "node-b"), line(TIMEOUT)], [])
    assert timeline is not None
    assert timeline.root is None
    assert "names a cause" in timeline.sentence
    assert not any(part.is_root for part in timeline.parts)
    assert timeline_of([], [Measured("node-a", "port_down", "port eth0 is down", AT_MS)]) is None


def test_a_measured_fault_is_the_root_where_lines_name_only_the_lost_peer() -> None:
    lines = [line(FLUSHED, "node-b"), line(TIMEOUT, "node-b", rank=1)]
    xid = Measured("node-a", "xid", "XID 79: GPU has fallen off the bus", AT_MS + 86_400_000, gpu="GPU-1")
    timeline = timeline_of(lines, [xid], {"10.7.1.8": "node-a"})
    assert timeline is not None
    assert timeline.root is not None
    assert (timeline.root.role, timeline.root.node, timeline.root.gpu) == ("measured", "node-a", "GPU-1")
    elsewhere = timeline_of(lines, [xid], {"10.7.1.8": "node-c"})
    assert elsewhere is not None
    assert elsewhere.root is None, "no line is about that host, and none of its own is near in time"


@pytest.mark.parametrize(
    ("measured", "is_support"),
    [
        (Measured("node-a", "port_down", "x", AT_MS + 500_000, port="mlx5_4/1"), True),
        (Measured("node-a", "port_down", "x", AT_MS + 700_000, port="mlx5_4/1"), False),
        (Measured("node-a", "port_down", "x", AT_MS, port="mlx5_0/1"), False),
        (Measured("node-a", "xid", "x", AT_MS, gpu="GPU-1"), False),
        (Measured("node-a", "nvlink_down", "x", AT_MS, gpu="GPU-1"), True),
        (Measured("node-b", "port_down", "x", AT_MS, port="mlx5_4/1"), False),
    ],
    ids=str,
)
def test_a_measured_fault_supports_a_line_of_its_host_time_kind_and_card(
    measured: Measured, *, is_support: bool
) -> None:
    timeline = timeline_of([line(PORT_ERROR_OF_2020)], [measured])
    assert timeline is not None
    assert ("measured on" in timeline.sentence) is is_support


def test_an_exception_after_a_cascade_of_the_same_rank_is_no_root() -> None:
    raised = HostLine("node-b", "program.exception", Role.ROOT, "RuntimeError: lost", 0, "", 0, "", 1, AT_MS, AT_MS)
    timeline = timeline_of([line(FLUSHED, "node-b", at_ms=AT_MS - 1), raised], [])
    assert timeline is not None
    assert timeline.root is None


def test_any_number_of_lines_costs_no_more_than_its_share_and_is_shown_in_part() -> None:
    names = [row.name for row in FAULT_LINES]

    def cost_s(number: int) -> float:
        lines = [
            HostLine(f"n{i % 64}", names[i % len(names)], Role.ROOT, "x", i % 512, f"p{i}", 0, "", 1, AT_MS, AT_MS)
            for i in range(number)
        ]
        began = time.process_time()
        timeline = timeline_of(lines, [Measured(f"n{i}", "port_down", "x", AT_MS) for i in range(10)])
        assert timeline is not None
        assert len(timeline.parts) <= MOST_PARTS
        return time.process_time() - began

    assert cost_s(8_000) < 30 * max(cost_s(1_000), 0.002)
