import time

import pytest

from muster.domain.exit.fault_lines import FAULT_LINES, Fault, LineSource, Role
from watch.lines.findings import LineFinding, exception_of, read_line

IB = "NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with"


def found(line: str, *, rank: int | None = None) -> LineFinding:
    finding = read_line(line, rank=rank)
    assert finding is not None, line
    return finding


@pytest.mark.parametrize(
    ("line", "name", "role", "rank", "host", "peer", "port", "hca"),
    [
        (f"n1:98:12 [3] net_ib.cc:95 {IB} error 12, opcode 1, len 0, vendor err 129 (Recv)",
         "nccl.ib_retry_exceeded", Role.ROOT, None, "n1", "10.7.1.9", 40112, ""),
        (f"n1:98:12 [3] {IB} status=12 opcode=0 len=0 vendor err 129 (Recv)",
         "nccl.ib_retry_exceeded", Role.ROOT, None, "n1", "10.7.1.9", 40112, ""),
        (("n1:98:12 [3] net_ib.cc:9 NCCL WARN NET/IB: Got completion from peer fe80::966d:ae03:8b:df54%ib0<33397> with "
         "status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 hca mlx5_3"),
         "nccl.ib_retry_exceeded", Role.ROOT, None, "n1", "fe80::966d:ae03:8b:df54%ib0", 33397, "mlx5_3"),
        (f"[1,6]<stderr>:n1:98:12 [3] {IB} status=5 opcode=0 len=0", "nccl.ib_flushed", Role.CASCADE, 6, "n1",
         "10.7.1.9", 40112, ""),
        ("[2025-08-19 10:01:02] n1:98:12 [0] NCCL WARN NET/IB : mlx5_4:1 Got async event : port error",
         "nccl.ib_port_error", Role.ROOT, None, "n1", "", 0, "mlx5_4"),
        ("n1:98:12 [0] NCCL WARN NET/IB : mlx5_4:1 Got async event : port active", "nccl.ib_event", Role.SYMPTOM, None,
         "n1", "", 0, "mlx5_4"),
        (("\x1b[31m[rank3]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation "
         "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE)\x1b[0m"), "c10d.timeout", Role.SYMPTOM, 3, "", "", 0, ""),
        ("[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 4, 5 failed to pass monitoredBarrier in 2000 ms",
         "gloo.barrier", Role.SYMPTOM, 0, "", "", 0, ""),
        ("RuntimeError: [../gloo/transport/tcp/pair.cc:598] Connection closed by peer [18.25.6.30]:28048",
         "gloo.peer_closed", Role.CASCADE, None, "", "18.25.6.30", 28048, ""),
        ("7: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "cuda.gpu_lost", Role.ROOT, 7,
         "", "", 0, ""),
        (("W1120 10:00:00.123000 991 torch/distributed/elastic/multiprocessing/api.py:900] Unable to shutdown process 7"
         " via 15, forcefully exiting via 9"), "launcher.killed", Role.SYMPTOM, None, "", "", 0, ""),
    ],
)  # fmt: skip
def test_a_line_gives_its_role_rank_host_and_connection(
    line: str, name: str, role: Role, rank: int | None, host: str, peer: str, port: int, hca: str
) -> None:
    got = found(line)
    assert (got.name, got.role, got.rank, got.host) == (name, role, rank, host)
    assert (got.peer, got.port, got.hca) == (peer, port, hca)


@pytest.mark.parametrize(
    "line",
    [
        f"my last run died with {IB} status=12 opcode=0",
        "see https://github.com/pytorch/issues: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4",
        "INFO: handles 'CUDA error: uncorrectable ECC error encountered' by a retry",
        "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus",
        "connection closed by peer",
        "[rank0]: step 4 loss 2.0",
        "",
    ],
)
def test_words_that_a_program_prints_itself_are_no_finding(line: str) -> None:
    assert read_line(line) is None


def test_lines_of_the_kernel_count_in_its_own_log_alone() -> None:
    line = "[ 4242.123456] NVRM: Xid (PCI:0000:9b:00): 79, pid=4711, name=python, GPU has fallen off the bus."
    finding = read_line(line, is_kernel=True)
    assert finding is not None
    assert (finding.name, finding.fault, dict(finding.details)) == (
        "kernel.xid", Fault.GPU, {"pci": "0000:9b:00", "xid": "79", "pid": "4711"}
    )  # fmt: skip
    assert read_line(line) is None
    assert read_line(f"n1:98:12 [3] {IB} status=12 opcode=0", is_kernel=True) is None


def test_the_prefix_of_a_line_names_its_rank_before_the_stream_does() -> None:
    line = "[rank5]: RuntimeError: DataLoader worker (pid(s) 4711) exited unexpectedly"
    assert found(line, rank=0).rank == 5
    assert found(line.removeprefix("[rank5]: "), rank=0).rank == 0


def test_the_last_line_of_a_traceback_is_the_programs_exception_unless_the_table_knows_it() -> None:
    own = exception_of("KeyError: 'x'", rank=2)
    assert own is not None
    assert (own.name, own.role, own.rank) == ("program.exception", Role.ROOT, 2)
    known = exception_of("RuntimeError: [pair.cc:1] Connection reset by peer", rank=2)
    assert known is not None
    assert known.role is Role.CASCADE
    assert exception_of("step 4") is None


def test_each_row_is_reached_by_a_line_of_its_own_words() -> None:
    """A row behind a row that matches the same words could never be found."""
    for row in FAULT_LINES:
        for tokens in row.alternatives:
            line = " ".join(tokens)
            first = next(r for r in FAULT_LINES if any(all(t in line for t in each) for each in r.alternatives))
            assert first.name == row.name, (row.name, first.name)


AT = "at"
BAIT = (
    "PG a work: 1 at" + " "
    "work: 1 last enqueued work: 1, last completed SequenceNumber=1, OpType=A Rank 1, 1, on ranks. "
    "Rank 1 is running collective: from peer a connect to a task a pid 1 vs by peer [1 hca a WorkNCCL(SeqNum=1, "
)
"""Beginnings of what the rows' patterns search for."""


def cpu_per_character(line: str, *, is_kernel: bool = False) -> float:
    """Return the least of some runs: other work of the machine only adds to it."""
    return min(_cpu_s(line, is_kernel=is_kernel) for _ in range(3)) / len(line)


def _cpu_s(line: str, *, is_kernel: bool) -> float:
    began = time.thread_time()
    for _ in range(5):
        read_line(line, is_kernel=is_kernel)
    return time.thread_time() - began


def test_a_hostile_line_of_any_row_costs_little_more_than_a_harmless_one_of_its_length() -> None:
    harmless = cpu_per_character(("[E a.cpp:1] " + "step 1 loss 2.0 " * 300)[:4500])
    for row in FAULT_LINES:
        for tokens in row.alternatives:
            said = " ".join(tokens) + " "
            form = "" if row.source is LineSource.KERNEL else "RuntimeError: "
            form = "[E a.cpp:1] " if row.source is LineSource.LAUNCHER else form
            hostile = (form + (said + BAIT) * 50)[:4500]
            found_row = read_line(hostile, is_kernel=row.source is LineSource.KERNEL)
            cost = cpu_per_character(hostile, is_kernel=row.source is LineSource.KERNEL)
            assert found_row is not None
            assert cost <= 20 * harmless, row.name


def test_what_a_watchdog_states_of_its_work_is_read_in_both_forms() -> None:
    new = (
        "[rank3]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [PG ID 0 PG GUID 7(default_pg) Rank 3] failure detected "
        "by watchdog "
        f"{AT} work sequence id: 5 PG status: last enqueued work: 6, last completed work: 4"
    )
    old = (
        "[rank3]:[E ProcessGroupNCCL.cpp:616] [PG 7 Rank 3] Exception (either an error or timeout) detected by "
        "watchdog "
        f"{AT} work: 5, last enqueued NCCL work: 6, last completed NCCL work: 4."
    )
    for line in (new, old):
        stated = {"group": "7", "sequence": "5", "enqueued": "6", "completed": "4"}
        assert dict(found(line).details) == stated
    assert dict(found(new.replace("sequence id: 5", "sequence id")).details) == {
        "group": "7", "enqueued": "6", "completed": "4"
    }  # fmt: skip
