"""Excerpts of a rank's last lines, which are stored and read again as the cause of its end."""

import pytest

from muster.domain.exit.exits import classify, parse_exit_record
from muster.domain.states import Cause
from workers.host.supervisor.record.log_streams import EXCERPT_BYTES, TAIL_BYTES, excerpt_of, sign_in

OOM = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
TRACEBACK = b"Traceback (most recent call last):\n  File x\n"
CHAIN = b"\n[rank0]: During handling of the above exception, another exception occurred:\n[rank0]: \n[rank0]: "
STEPS = b"".join(b"step %d\n" % number for number in range(100))


def cause_of(log: bytes, exit_code: int = 1) -> Cause:
    """As the supervisor keeps it and the control plane reads it."""
    excerpt = excerpt_of(log[-TAIL_BYTES:], sign_in(log))
    assert len(excerpt.encode()) <= EXCERPT_BYTES
    rank = {"exit_code": exit_code, "signal": None, "ended_at_ms": 1, "error_excerpt": excerpt}
    return classify(parse_exit_record({"launcher_exit_code": 1, "ranks": {"0": rank}}), None).cause


@pytest.mark.parametrize(
    ("log", "exit_code", "cause"),
    [
        (STEPS + TRACEBACK + OOM, 1, Cause.GPU_OOM),
        (STEPS + TRACEBACK + OOM + b"warning\n" * 700, 1, Cause.GPU_OOM),
        (STEPS + TRACEBACK + OOM + CHAIN + TRACEBACK + b"RuntimeError: no batch fits\n", 1, Cause.GPU_OOM),
        (OOM + STEPS + TRACEBACK + b"KeyError: 'x'\n", 1, Cause.USER_ERROR),
        (TRACEBACK + OOM + STEPS + TRACEBACK + b"KeyError: 'x'\n", 1, Cause.USER_ERROR),
        (TRACEBACK + OOM + STEPS, 3, Cause.USER_ERROR),
        (OOM + STEPS, 1, Cause.USER_ERROR),
        (OOM + STEPS * 100, 1, Cause.USER_ERROR),
    ],
    ids=[
        "raised",
        "and much behind it",
        "chained",
        "logged",
        "caught",
        "caught, then a code",
        "logged, then a code",
        "logged long ago",
    ],
)
def test_memory_that_was_short_once_is_not_why_it_ended_later(log: bytes, exit_code: int, cause: Cause) -> None:
    assert cause_of(log, exit_code) is cause


def test_a_sign_that_no_program_outlives_is_kept_however_much_follows() -> None:
    system = b"ncclSystemError: Got completion from peer 10.0.0.1<1> with status=12 opcode=0\n"
    assert cause_of(system + STEPS * 100) is Cause.NCCL_TIMEOUT
