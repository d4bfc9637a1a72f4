"""What each exit code and each known line of a log comes to, in every situation that a program ends in."""

from collections.abc import Mapping
from typing import Any

import pytest

from muster.domain.exit.causes import CAUSE_RULES, Budget
from muster.domain.exit.exit_signs import CASCADES, GPU_SIGNS, OUT_OF_GPU_MEMORY, ROOT_CAUSES, first_of
from muster.domain.exit.exits import GpuFault, KnownFaults, Verdict, classify, parse_exit_record
from muster.domain.ids import GpuUuid
from muster.domain.states import Cause, StopReason
from workers.host.supervisor.record.log_streams import SIGNS

END_MS = 1_000_000
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242"
C = Cause


def rank(code: int | None = 1, words: str | None = None, *, after_ms: int = 0, **fields: Any) -> dict[str, Any]:
    known = {"exit_code": code, "signal": None, "ended_at_ms": END_MS + after_ms, "error_excerpt": words}
    return {**known, **fields}


def judged(
    *ranks: Mapping[str, Any], stop: StopReason | None = None, faults: tuple[GpuFault, ...] = (), **fields: Any
) -> Verdict:
    document = {"launcher_exit_code": 1, "ranks": {str(n): each for n, each in enumerate(ranks)}, **fields}
    return classify(parse_exit_record(document), stop, faults=KnownFaults(faults, 60_000))


def fault(*ranks: int, before_ms: int = 1000, uuid: str = "GPU-1") -> GpuFault:
    return GpuFault(GpuUuid(uuid), "XID 79: the GPU has fallen off the bus", END_MS - before_ms, frozenset(ranks))


CODES = (16, 17, 64, 74, 75, 76, 93, 1, 3, 70)
SITUATIONS: Mapping[str, Mapping[int, Cause]] = {
    "alone": {
        16: C.GPU_FAULT, 17: C.DIVERGED, 64: C.USER_ERROR, 74: C.SAVE_FAILED, 75: C.LAUNCH_FAILED, 76: C.LAUNCH_FAILED,
        93: C.USER_ERROR, 1: C.USER_ERROR, 3: C.USER_ERROR, 70: C.USER_ERROR,
    },
    "a stop took effect": dict.fromkeys(CODES, C.RECLAIMED),
    "a stop stands and had not reached it": {
        16: C.GPU_FAULT, 17: C.DIVERGED, 64: C.USER_ERROR, 74: C.SAVE_FAILED, 75: C.RECLAIMED, 76: C.RECLAIMED,
        93: C.USER_ERROR, 1: C.USER_ERROR, 3: C.USER_ERROR, 70: C.USER_ERROR,
    },
    "another rank raised before it": dict.fromkeys(CODES, C.USER_ERROR),
    "another rank missed it": {
        16: C.GPU_FAULT, 17: C.DIVERGED, 64: C.USER_ERROR, 74: C.SAVE_FAILED, 75: C.LAUNCH_FAILED, 76: C.LAUNCH_FAILED,
        93: C.USER_ERROR, 1: C.USER_ERROR, 3: C.USER_ERROR, 70: C.USER_ERROR,
    },
    "its GPU failed": {**dict.fromkeys(CODES, C.GPU_FAULT), 75: C.LAUNCH_FAILED, 76: C.LAUNCH_FAILED},
    "the kernel killed for memory": dict.fromkeys(CODES, C.HOST_OOM),
    "the lease ended": dict.fromkeys(CODES, C.NODE_LOST),
}  # fmt: skip


OUTCOMES = {17: "diverged", 74: "save_failed", 75: "stopped_with_checkpoint", 76: "stopped_without", 93: "superseded"}
"""Outcome that ``muster.train`` reports before it ends with the code."""


def in_situation(situation: str, code: int, outcome: str | None = "none") -> Verdict:
    own = rank(code, outcome=outcome)
    stop = StopReason.RECLAIM
    cases = {
        "alone": lambda: judged(own),
        "a stop took effect": lambda: judged(own, stop=stop, stop_reason="reclaim"),
        "a stop stands and had not reached it": lambda: judged(own, stop=stop),
        "another rank raised before it": lambda: judged(own, rank(1, "KeyError: 'x'", after_ms=-50)),
        "another rank missed it": lambda: judged(rank(1, PEER, after_ms=-50), own),
        "its GPU failed": lambda: judged(own, faults=(fault(0),)),
        "the kernel killed for memory": lambda: judged(own, oom_killed=True),
        "the lease ended": lambda: judged(own, self_fenced=True),
    }
    return cases[situation]()


@pytest.mark.parametrize(
    ("situation", "code", "cause"),
    [(name, code, cause) for name, causes in SITUATIONS.items() for code, cause in causes.items()],
)
def test_each_exit_code_has_its_meaning_in_each_situation(situation: str, code: int, cause: Cause) -> None:
    assert in_situation(situation, code, OUTCOMES.get(code, "none")).cause is cause


@pytest.mark.parametrize(
    ("situation", "code", "cause"),
    [
        ("alone", 16, C.CORRUPTION),
        ("alone", 0, C.CORRUPTION),
        ("alone", 3, C.USER_ERROR),
        ("its GPU failed", 16, C.GPU_FAULT),
    ],
)
def test_copies_that_differ_are_a_cause_of_their_own_unless_its_gpu_was_measured(
    situation: str, code: int, cause: Cause
) -> None:
    """Another program's 16 asks for another GPU as well, and says nothing of copies."""
    verdict = in_situation(situation, code, "corruption")
    assert (verdict.cause, verdict.is_reported) == (cause, cause is C.CORRUPTION)


@pytest.mark.parametrize(
    ("outcome", "code", "text", "culprit"),
    [
        ("diverged", 17, "diverged at step 5: the loss is nan on ranks 0, 1; first in 0.bias on rank 1", 1),
        ("diverged", 17, "diverged at step 5: the loss is nan on ranks 0, 1", None),
        ("diverged", 17, "diverged at step 5: the loss is nan on rank 0; the norm is inf on rank 1", None),
        ("corruption", 16, "replicas differ at step 9: the copy of w is false on rank 2 of 3 ranks with copies", 2),
        ("corruption", 16, "replicas differ at step 9: the copies of w differ on ranks 0, 1; undecided which", None),
        ("none", 17, "diverged at step 5: the loss is nan on rank 1", 0),
        ("save_failed", 74, "the last checkpoint could not be saved: no space on rank 1", 0),
    ],
)
def test_the_culprit_of_faulty_values_is_the_rank_that_the_runtime_names_and_not_the_first_to_end(
    outcome: str, code: int, text: str, culprit: int | None
) -> None:
    first, other = (rank(code, f"x\nmuster.train: {text}", outcome=outcome, after_ms=ms) for ms in (0, 5))
    assert judged(first, other).culprit_rank == culprit


def test_the_reason_that_the_runtime_gives_comes_before_the_code() -> None:
    text = "muster.train: diverged at step 5: the loss is nan on rank 0\nW1 torchrun: sending SIGTERM"
    proof = judged(rank(17, text, outcome="diverged")).proof
    assert proof == (
        "diverged at step 5: the loss is nan on rank 0; rank 0 ended with code 17: "
        "its results did not pass their validation"
    )
    assert judged(rank(17, "loss too high", outcome="none")).proof == (
        "rank 0 ended with code 17: its results did not pass their validation: loss too high"
    )


RUNTIMES_OWN = (74, 75, 76)
HARMED_BY_OTHERS = {"a stop took effect", "its GPU failed", "the kernel killed for memory", "the lease ended"}


@pytest.mark.parametrize("code", RUNTIMES_OWN)
@pytest.mark.parametrize("outcome", ["none", "done", "failed", "of_a_later_release"])
@pytest.mark.parametrize("situation", SITUATIONS.keys() - HARMED_BY_OTHERS)
def test_a_program_may_end_with_a_code_of_the_runtime_for_its_own_reasons(
    situation: str, outcome: str, code: int
) -> None:
    """74 to 76 are EX_IOERR, EX_TEMPFAIL and EX_PROTOCOL of sysexits.h."""
    verdict = in_situation(situation, code, outcome)
    assert (verdict.cause, verdict.is_cascade, verdict.is_final) == (C.USER_ERROR, False, False)


@pytest.mark.parametrize("code", OUTCOMES)
@pytest.mark.parametrize("situation", SITUATIONS.keys() - HARMED_BY_OTHERS)
def test_an_outcome_stands_where_the_program_turns_its_code_into_0_and_not_into_another(
    situation: str, code: int
) -> None:
    assert in_situation(situation, 0, OUTCOMES[code]).cause is SITUATIONS[situation][code]
    assert in_situation(situation, 3, OUTCOMES[code]).cause is C.USER_ERROR
    assert in_situation(situation, 16, OUTCOMES[code]).cause is SITUATIONS[situation][16]


def test_a_rank_that_ended_with_0_after_a_failed_save_is_no_success() -> None:
    verdict = judged(rank(0, "muster.train: no space", outcome="save_failed"), launcher_exit_code=0)
    assert (verdict.cause, verdict.culprit_rank) == (C.SAVE_FAILED, 0)
    assert verdict.proof == "no space; rank 0 ended with code 0: its results could not be saved"
    assert judged(rank(0, outcome="done"), rank(0, outcome="none"), rank(0), launcher_exit_code=0).cause is C.SUCCEEDED


@pytest.mark.parametrize(
    ("code", "words", "cause"),
    [
        (74, "muster.train: the last checkpoint, of step 9, could not be saved", C.SAVE_FAILED),
        (74, "OSError: [Errno 5] Input/output error", C.USER_ERROR),
        (75, None, C.LAUNCH_FAILED),
        (93, "muster.train: a newer attempt has begun", C.USER_ERROR),
    ],
)
def test_a_host_of_0_1_0_reports_no_outcome_and_its_codes_keep_their_meaning(
    code: int, words: str | None, cause: Cause
) -> None:
    assert judged(rank(code, words)).cause is cause


@pytest.mark.parametrize("code", CODES)
def test_only_what_the_program_states_would_end_so_again_is_final(code: int) -> None:
    assert judged(rank(code)).is_final == (code in {64, 93})
    assert not judged(rank(code), stop=StopReason.RECLAIM, stop_reason="reclaim").is_final


ARGPARSE = "usage: train.py [-h] [--steps STEPS]\ntrain.py: error: unrecognized arguments: --step 4"
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --step"


@pytest.mark.parametrize(
    ("code", "words", "is_final"),
    [
        (2, ARGPARSE, True),
        (2, CLICK, True),
        (2, "  [--seed SEED]\ntrain.py: error: argument --steps: invalid int value: 'many'", True),
        (2, "train.py: error: the following arguments are required: --data", True),
        (2, "Usage of train:\n  -steps int", True),
        (2, "Usage of GPU 0: 71 GiB", False),
        (2, "usage 95 %", False),
        (1, ARGPARSE, False),
        (2, "make: *** [kernels.o] Error 1", False),
        (2, "kernels.cu:3: error: identifier is undefined", False),
        (2, f"{ARGPARSE}\nTraceback (most recent call last):\nOSError: [Errno 5] Input/output error", False),
        (2, None, False),
    ],
)
def test_arguments_that_a_program_refuses_are_not_given_to_it_again(
    code: int, words: str | None, *, is_final: bool
) -> None:
    assert judged(rank(code, words)) == Verdict(C.USER_ERROR, judged(rank(code, words)).proof, 0, is_final=is_final)


def test_a_code_states_what_it_means_in_the_proof() -> None:
    assert judged(rank(93, "muster.train: a newer attempt has begun")).proof == (
        "rank 0 ended with code 93: it is not to be started again: muster.train: a newer attempt has begun"
    )
    assert judged(rank(75)).proof.endswith("as after a stop request, which Muster had not sent")


LINES: tuple[tuple[str, Cause, bool], ...] = (
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", C.USER_ERROR, False),
    ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", C.USER_ERROR, False),
    ("pynvml.NVMLError_GpuIsLost: GPU is lost", C.USER_ERROR, False),
    ("h:1:2 [0] NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0 vendor err 129",
     C.NCCL_TIMEOUT, False),
    ("NET/IB: Got completion from peer 10.0.0.1 with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) len=0",
     C.NCCL_TIMEOUT, False),
    ("h:1:2 [0] NET/IB : Got completion from peer 10.0.0.1<1> with status=5 opcode=0 len=0", C.NCCL_TIMEOUT, True),
    ("h:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 12, opcode 129, len 0",
     C.NCCL_TIMEOUT, False),
    ("h:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.7.1.9<40112> with error 5, opcode 129, len 0",
     C.NCCL_TIMEOUT, True),
    ("h:1:2 [0] NCCL WARN NET/IB : mlx5_4:1 Got async event : port error", C.NCCL_TIMEOUT, False),
    ("h:1:2 [0] NCCL WARN NET/IB : mlx5_4:1 Got async fatal event: local catastrophic error", C.NCCL_TIMEOUT, False),
    ("CUDA_ERROR_CONTAINED: Invalid access of peer GPU memory over nvlink or a hardware error", C.USER_ERROR, False),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", C.NCCL_TIMEOUT, False),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled cuda error", C.NCCL_TIMEOUT, True),
    ("ncclInternalError: Internal check failed.", C.NCCL_TIMEOUT, False),
    ("ncclRemoteError: remote process exited or there was a network error", C.NCCL_TIMEOUT, True),
    ("RuntimeError: [gloo/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
     C.NCCL_TIMEOUT, True),
    ("RuntimeError: Ranks 1 failed to pass monitoredBarrier in 30000 ms", C.NCCL_TIMEOUT, True),
    ("[rank0]:[E x.cpp:689] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)", C.NCCL_TIMEOUT, True),
    ("[rank0]: failure detected by watchdog at work sequence id: 4 PG status: last enqueued work: 4",
     C.NCCL_TIMEOUT, True),
    ("h:1:2 [0] socket.c NCCL WARN connect to 10.0.0.2<4> returned x, exceeded error retry count after 35 attempts",
     C.NCCL_TIMEOUT, True),
    ("h:1:2 [0] NCCL WARN Cuda failure 'unspecified launch failure'", C.NCCL_TIMEOUT, True),
    ("RuntimeError: Gloo connectFullMesh failed with [x] no error", C.NCCL_TIMEOUT, True),
    (PEER, C.NCCL_TIMEOUT, True),
    ("Bootstrap Root : rank 1 of 2 ranks has already checked in", C.LAUNCH_FAILED, False),
    ("[rank0]:[F x.cpp:1] ProcessGroupNCCL's watchdog got stuck for 480 seconds", C.HANG, False),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
     C.CHECKPOINT_CORRUPT, False),
    ("RuntimeError: Unexpected result nan (message='found NaN in local forward loss calculation')", C.DIVERGED, False),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", C.GPU_OOM, False),
    ("RuntimeError: CUDA error: unspecified launch failure", C.USER_ERROR, False),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running ALLREDUCE", C.USER_ERROR, False),
    ("NCCL WARN Mismatched NCCL version detected : rank 0 2.18 rank 1 2.20", C.USER_ERROR, False),
    ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, invalid usage", C.USER_ERROR, False),
)  # fmt: skip


@pytest.mark.parametrize(("line", "cause", "is_cascade"), LINES)
def test_each_known_line_has_its_cause_and_is_its_proof(line: str, cause: Cause, is_cascade: bool) -> None:  # noqa: FBT001
    verdict = judged(rank(1, f"an earlier line\n{line}"))
    assert (verdict.cause, verdict.is_cascade, verdict.culprit_rank) == (cause, is_cascade, 0)
    assert line in verdict.proof


@pytest.mark.parametrize(("line", "is_cascade"), [(line, is_cascade) for line, _, is_cascade in LINES if is_cascade])
def test_no_cascade_goes_before_the_exception_of_another_rank(line: str, is_cascade: bool) -> None:  # noqa: FBT001
    assert is_cascade
    verdict = judged(rank(1, line, after_ms=-500), rank(1, "KeyError: 'x'"))
    assert (verdict.cause, verdict.culprit_rank, verdict.is_cascade) == (C.USER_ERROR, 1, False)


def test_of_two_roots_the_first_is_the_cause() -> None:
    system = "DistBackendError: unhandled system error"
    assert judged(rank(1, system, after_ms=9), rank(1, "KeyError: 'x'")).cause is C.USER_ERROR
    assert judged(rank(1, system, after_ms=-9), rank(1, "KeyError: 'x'")).cause is C.NCCL_TIMEOUT


@pytest.mark.parametrize(
    "words",
    [
        "RuntimeError: CUDA error: unspecified launch failure",
        "DistBackendError: unhandled cuda error",
        "ValueError: loss is nan",
        None,
    ],
)
def test_a_fault_measured_on_a_ranks_gpu_about_its_end_is_the_cause(words: str | None) -> None:
    verdict = judged(rank(1, words), rank(None, None, signal=15), faults=(fault(0),))
    assert (verdict.cause, verdict.culprit_rank) == (C.GPU_FAULT, 0)
    assert verdict.proof.startswith("XID 79: the GPU has fallen off the bus on GPU-1; rank 0 ended with code 1")
    assert CAUSE_RULES[verdict.cause].budget is Budget.INFRASTRUCTURE


def test_a_fault_of_another_ranks_gpu_or_of_another_time_excuses_no_program() -> None:
    own = rank(1, "KeyError: 'x'")
    assert judged(own, rank(0), faults=(fault(1),)).cause is C.USER_ERROR
    assert judged(own, faults=(fault(0, before_ms=60_001),)).cause is C.USER_ERROR
    assert judged(own, faults=(fault(0, before_ms=-60_000),)).cause is C.GPU_FAULT
    assert judged(own, faults=(fault(),)).cause is C.GPU_FAULT, "it is unknown whose GPU it is"
    oom = rank(1, "torch.OutOfMemoryError: CUDA out of memory")
    assert judged(oom, faults=(fault(0),)).cause is C.GPU_OOM


def test_ranks_that_waited_for_a_lost_gpu_may_have_waited_long() -> None:
    waited = rank(None, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)", signal=6)
    gone = rank(None, None, signal=15)
    assert judged(waited, gone).cause is C.NCCL_TIMEOUT
    verdict = judged(waited, gone, faults=(fault(1, before_ms=600_000),))
    assert (verdict.cause, verdict.is_cascade) == (C.GPU_FAULT, False)


def test_an_event_of_a_port_that_came_up_is_no_sign() -> None:
    line = "h:1:2 [0] NCCL WARN NET/IB : mlx5_4:1 Got async event : port active"
    assert first_of((*ROOT_CAUSES, *CASCADES, *GPU_SIGNS), line) is None


def test_what_a_program_prints_of_a_gpu_proves_nothing_and_goes_before_what_missed_it() -> None:
    said = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    alone = judged(rank(1, f"{PEER}\n{said}"), rank(1, PEER, after_ms=-5))
    assert (alone.cause, alone.culprit_rank, alone.is_cascade) == (C.USER_ERROR, 0, False)
    assert alone.proof == f"rank 0 ended with code 1: {said}, and nothing of the kind was measured on its host"
    assert CAUSE_RULES[alone.cause].budget is Budget.JOB
    assert judged(rank(1, said), faults=(fault(0),)).cause is C.GPU_FAULT


def test_a_gpu_that_only_the_program_blames_is_blamed_by_its_word() -> None:
    """Code 16 is for a result that the program found wrong itself: it continues elsewhere, and proves nothing."""
    assert judged(rank(16)).is_reported
    measured = judged(rank(16), faults=(fault(0),))
    assert (measured.cause, measured.is_reported) == (C.GPU_FAULT, False)


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
TRACEBACK = "Traceback (most recent call last):\n  File x"
CHAIN = "[rank0]: During handling of the above exception, another exception occurred:\n[rank0]:\n"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (f"{TRACEBACK}\n{OOM}", C.GPU_OOM),
        (f"{TRACEBACK}\n{OOM}\n[W] destroy_process_group() was not called", C.GPU_OOM),
        (f"{TRACEBACK}\n{OOM}\n\n{CHAIN}[rank0]: {TRACEBACK}\n[rank0]: RuntimeError: no batch fits", C.GPU_OOM),
        (f"{OOM}\n{TRACEBACK}\nKeyError: 'x'", C.USER_ERROR),
        (f"{TRACEBACK}\n{OOM}\nsmaller pieces now\n{TRACEBACK}\nKeyError: 'x'", C.USER_ERROR),
        (f"{OOM}\n{TRACEBACK}\n{PEER}", C.NCCL_TIMEOUT),
    ],
)
def test_memory_that_was_short_is_the_cause_only_of_the_end_that_it_brought_about(words: str, cause: Cause) -> None:
    assert judged(rank(1, words)).cause is cause


@pytest.mark.parametrize(("stop", "cause"), [(None, C.LAUNCH_FAILED), (StopReason.RECLAIM, C.RECLAIMED)])
def test_sigterm_that_none_requested_of_us_is_not_the_programs_fault(stop: StopReason | None, cause: Cause) -> None:
    verdict = judged(rank(None, None, signal=15), stop=stop)
    assert (verdict.cause, verdict.is_cascade) == (cause, True)
    assert CAUSE_RULES[cause].budget is Budget.INFRASTRUCTURE
    assert judged(rank(None, None, signal=15), faults=(fault(0),)).cause is C.GPU_FAULT


def test_what_the_supervisor_keeps_of_a_log_is_what_is_read_here() -> None:
    known = (*ROOT_CAUSES, *CASCADES, *OUT_OF_GPU_MEMORY, *GPU_SIGNS)
    tokens = [token for sign in known for token in sign.tokens]
    for kept in SIGNS:
        assert any(kept.decode() in token or token in kept.decode() for token in tokens), kept


def test_signs_are_whole_phrases_in_one_line() -> None:
    assert first_of(ROOT_CAUSES, "Got completion from peer\nwith status=12 ") is None
    assert first_of(ROOT_CAUSES, "NVRM: Xid handling enabled; 0 errors") is None
    assert first_of(ROOT_CAUSES, None) is None
