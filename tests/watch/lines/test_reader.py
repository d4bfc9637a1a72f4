import pytest

from watch.lines.findings import MAX_LINE
from watch.lines.reader import MAX_OF_A_KIND, LineReader

ROOT = b"n1:98:12 [3] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with status=12 opcode=0 len=0\n"
LOG = (
    b"step 1 loss 2.0\n"
    + ROOT
    + b"10%|#   | 1/10\r20%|##  | 2/10\r"
    + b"Traceback (most recent call last):\n  File \"train.py\", line 4, in <module>\n    raise KeyError('x')\n"
    + b"KeyError: 'x'\n"
    + b"[rank1]:[E1120 10:22:31.5 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: W\n"
)
NAMES = ["nccl.ib_retry_exceeded", "program.exception", "c10d.timeout"]


def names_of(chunks: list[bytes]) -> list[str]:
    reader = LineReader(rank=0)
    return [finding.name for chunk in chunks for finding in reader.feed(chunk)] + [each.name for each in reader.close()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 16, 61, 127, len(LOG)])
def test_a_log_torn_anywhere_gives_the_same_findings(size: int) -> None:
    assert names_of([LOG[start : start + size] for start in range(0, len(LOG), size)]) == NAMES


def test_a_last_line_without_an_end_is_read_when_the_stream_ends() -> None:
    assert names_of([ROOT.rstrip()]) == ["nccl.ib_retry_exceeded"]


def test_a_line_without_end_takes_bounded_memory_and_loses_no_later_line() -> None:
    reader = LineReader(rank=0)
    for _ in range(64):
        assert reader.feed(b"x" * 100_000) == ()
        assert len(reader._torn) <= MAX_LINE
    assert [each.name for each in reader.feed(b"\n" + ROOT)] == ["nccl.ib_retry_exceeded"]


def test_a_line_that_repeats_without_end_is_found_a_bounded_number_of_times() -> None:
    reader = LineReader(rank=0)
    assert len(reader.feed(ROOT * 500)) == MAX_OF_A_KIND
    assert reader.feed(ROOT) == ()
    other = b"n1:98:12 [0] NCCL WARN NET/IB : mlx5_4:1 Got async event : port error\n"
    assert [each.name for each in reader.feed(other)] == ["nccl.ib_port_error"]


def test_bytes_that_are_no_text_stop_nothing() -> None:
    assert names_of([b"\xff\xfe\x00\x80 NCCL WARN \xc3\n", ROOT]) == ["nccl.ib_retry_exceeded"]


def test_an_exception_that_is_only_quoted_opens_no_traceback() -> None:
    assert names_of([b"the handler of KeyError: 'x' ran\n", b"KeyError: 'x'\n"]) == []
