from typing import Any

import pytest

from muster.domain.exit.exit_signs import last_words
from muster.domain.exit.exits import ExitRecord, RankExit, classify, parse_exit_record
from muster.domain.states import Cause, StopReason
from muster.train.runtime.exit_codes import EXIT_STOPPED_WITH_CHECKPOINT, EXIT_STOPPED_WITHOUT

TIMEOUT_LINE = "[rank0]:[E ProcessGroupNCCL.cpp:689] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)"


def record(**fields: Any) -> ExitRecord:
    return parse_exit_record({"launcher_exit_code": 1, **fields})


def failed(**fields: Any) -> dict[str, Any]:
    return {"exit_code": 1, "signal": None, "ended_at_ms": 100, "error_excerpt": None, **fields}


FINE = {"exit_code": 0, "signal": None}


def test_all_ranks_at_zero_is_success() -> None:
    verdict = classify(record(launcher_exit_code=0, ranks={"0": FINE, "1": FINE}), None)
    assert verdict.cause is Cause.SUCCEEDED


def test_an_exception_is_the_users_and_its_proof_names_rank_code_and_last_line() -> None:
    excerpt = "Traceback (most recent call last):\n  File …\nValueError: bad shape\n"
    verdict = classify(record(ranks={"0": FINE, "1": failed(error_excerpt=excerpt)}), None)
    assert verdict.cause is Cause.USER_ERROR
    assert verdict.culprit_rank == 1
    assert verdict.proof == "rank 1 ended with code 1: ValueError: bad shape"


def test_the_rank_that_failed_first_is_the_culprit() -> None:
    ranks = {"0": failed(ended_at_ms=200), "1": failed(exit_code=3, ended_at_ms=100)}
    assert classify(record(ranks=ranks), None).culprit_rank == 1


def test_a_rank_that_torchrun_ended_is_never_the_culprit() -> None:
    ranks = {"0": failed(exit_code=None, signal=15, ended_at_ms=1), "1": failed(exit_code=3, ended_at_ms=100)}
    assert classify(record(ranks=ranks), None).culprit_rank == 1


def test_a_memory_kill_with_the_kernels_word_is_host_oom() -> None:
    ranks = {"0": failed(ended_at_ms=1), "1": failed(exit_code=None, signal=9)}
    verdict = classify(record(ranks=ranks, oom_killed=True), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.HOST_OOM, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "the kernel counted a memory kill"),
        ({"cgroup_oom_kills": 1}, "1 memory kill in the attempt's own group, without a limit of its own"),
        (
            {"cgroup_oom_kills": 2, "memory_limit_bytes": 64 << 30},
            "2 memory kills in the attempt's own group, limited to 64 GiB",
        ),
    ],
)
def test_the_proof_of_a_memory_kill_states_whose_count_it_is_and_which_limit(
    fields: dict[str, int], words: str
) -> None:
    ranks = {"0": failed(exit_code=None, signal=9)}
    assert words in classify(record(ranks=ranks, oom_killed=True, **fields), None).proof


def test_a_sigkill_without_the_kernels_word_is_a_user_error_that_names_the_signal() -> None:
    verdict = classify(record(ranks={"0": failed(exit_code=None, signal=9)}), None)
    assert verdict.cause is Cause.USER_ERROR
    assert verdict.proof.endswith("signal 9 (SIGKILL): sent neither by Muster nor by the kernel for want of memory")
    said = classify(record(ranks={"0": failed(exit_code=None, signal=9, error_excerpt="step 7")}), None)
    assert said.proof.endswith("want of memory; its last words: step 7")


def test_ranks_that_died_with_their_torchrun_are_nobodys_fault() -> None:
    died = {"0": failed(exit_code=None, signal=9), "1": failed(exit_code=None, signal=9)}
    killed = {"launcher_exit_code": None, "launcher_signal": 9, "ranks": died}
    verdict = classify(record(launcher="torchrun", **killed), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.LAUNCH_FAILED, None)
    assert verdict.proof == "torchrun ended with signal 9 (SIGKILL), and took its ranks with it"
    assert classify(record(launcher="command", **killed), None).cause is Cause.USER_ERROR
    assert classify(record(launcher="torchrun", oom_killed=True, **killed), None).cause is Cause.HOST_OOM
    with_its_own = {**killed, "ranks": {**died, "1": failed(exit_code=3, ended_at_ms=50)}}
    assert classify(record(launcher="torchrun", **with_its_own), None).culprit_rank == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": {"0": failed(error_excerpt="RuntimeError: Connection closed by peer [127.0.0.1]:1")}},
        {"ranks": {"0": failed(error_excerpt=TIMEOUT_LINE)}},
        {"ranks": {"0": failed(exit_code=None, signal=15)}, "stop_reason": "user_error"},
        {"ranks": {"0": failed(exit_code=75), "1": failed(exit_code=76)}},
    ],
)
def test_what_a_host_states_when_another_failed_is_a_cascade(fields: dict[str, Any]) -> None:
    assert classify(record(**fields), None).is_cascade


@pytest.mark.parametrize(
    "fields",
    [
        {"ranks": {"0": failed(error_excerpt=TIMEOUT_LINE), "1": failed(exit_code=3)}},
        {"ranks": {"0": failed(exit_code=None, signal=9)}},
        {"supervisor_vanished": True},
        {"ranks": {"0": failed(exit_code=75)}, "stop_reason": "host_shutdown"},
    ],
)
def test_what_states_why_is_none(fields: dict[str, Any]) -> None:
    assert not classify(record(**fields), None).is_cascade


def test_a_rank_that_left_with_code_0_is_the_root_of_those_that_missed_it() -> None:
    missed = failed(error_excerpt="RuntimeError: Connection closed by peer [127.0.0.1]:1", ended_at_ms=50)
    left = {"exit_code": 0, "ended_at_ms": 40}
    verdict = classify(record(ranks={"0": missed, "1": left}), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.USER_ERROR, 1)
    assert verdict.proof.startswith(
        "rank 1 ended with code 0 while other ranks still needed it; rank 0 ended with code"
    )
    assert verdict.is_cascade, "another host may say why"
    behind = classify(record(ranks={"0": missed, "1": {**left, "ended_at_ms": 60}}), None)
    assert behind.culprit_rank == 0, "it ended after the others had failed"
    own_fault = failed(error_excerpt="KeyError: 'x'", ended_at_ms=50)
    assert classify(record(ranks={"0": own_fault, "1": left}), None).culprit_rank == 0


def test_gpu_oom_is_reported_by_the_excerpt() -> None:
    excerpt = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    verdict = classify(record(ranks={"0": failed(error_excerpt=excerpt)}), None)
    assert verdict.cause is Cause.GPU_OOM
    assert "Tried to allocate" in verdict.proof


def test_a_collective_timeout_on_every_failing_rank_is_nccl_timeout() -> None:
    abort = failed(exit_code=None, signal=6, error_excerpt=TIMEOUT_LINE)
    verdict = classify(record(ranks={"0": abort, "1": failed(exit_code=None, signal=15)}), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.NCCL_TIMEOUT, 0)


def test_a_timeout_never_hides_the_exception_of_another_rank() -> None:
    abort = failed(exit_code=None, signal=6, error_excerpt=TIMEOUT_LINE, ended_at_ms=50)
    verdict = classify(record(ranks={"0": abort, "1": failed(error_excerpt="KeyError: 'x'")}), None)
    assert (verdict.cause, verdict.culprit_rank) == (Cause.USER_ERROR, 1)


@pytest.mark.parametrize(
    ("stop", "cause"),
    [
        (StopReason.RECLAIM, Cause.RECLAIMED),
        (StopReason.CANCEL, Cause.CANCELLED),
        (StopReason.EVACUATION, Cause.EVACUATED),
        (StopReason.MAINTENANCE, Cause.MAINTENANCE),
        (StopReason.HOT_SWAP, Cause.HOT_SWAP),
    ],
)
def test_a_stop_that_took_effect_names_the_end_even_after_a_clean_exit(stop: StopReason, cause: Cause) -> None:
    stopped = record(launcher_exit_code=0, ranks={"0": FINE}, stop_reason=stop.value)
    assert classify(stopped, stop).cause is cause
    assert classify(stopped, None).cause is cause


def test_the_servers_reason_wins_over_the_one_the_host_received_first() -> None:
    stopped = record(ranks={"0": failed()}, stop_reason="reclaim")
    assert classify(stopped, StopReason.CANCEL).cause is Cause.CANCELLED


def test_a_program_that_ended_well_before_the_stop_took_effect_succeeded() -> None:
    assert classify(record(launcher_exit_code=0, ranks={"0": FINE}), StopReason.RECLAIM).cause is Cause.SUCCEEDED


def test_a_program_that_failed_before_the_stop_took_effect_failed() -> None:
    assert classify(record(ranks={"0": failed()}), StopReason.RECLAIM).cause is Cause.USER_ERROR


def test_wall_time() -> None:
    over = record(ranks={"0": failed(exit_code=None, signal=9)}, stop_reason="walltime", wall_time_exceeded=True)
    assert classify(over, None).cause is Cause.WALLTIME


@pytest.mark.parametrize("fields", [{"self_fenced": True, "stop_reason": "lease"}, {"supervisor_vanished": True}])
def test_out_of_contact_is_node_lost_unless_it_was_cancelled(fields: dict[str, Any]) -> None:
    assert classify(record(**fields), StopReason.RECLAIM).cause is Cause.NODE_LOST
    assert classify(record(**fields), StopReason.CANCEL).cause is Cause.CANCELLED


@pytest.mark.parametrize("reason", ["host_shutdown", "stale"])
def test_a_stop_of_the_hosts_own_is_node_lost(reason: str) -> None:
    assert classify(record(stop_reason=reason, ranks={"0": FINE}), None).cause is Cause.NODE_LOST


def test_a_missing_program_is_the_users_and_a_broken_host_is_ours() -> None:
    missing = parse_exit_record({"spawn_error": "no such file", "spawn_fault": "program"})
    assert classify(missing, None).cause is Cause.USER_ERROR
    ours = parse_exit_record({"spawn_error": "cannot fork", "spawn_fault": "host"})
    assert classify(ours, None).cause is Cause.LAUNCH_FAILED


def test_a_dataset_that_other_hosts_have_is_missing_by_the_hosts_fault() -> None:
    lacking = parse_exit_record({"spawn_error": "no corpus", "spawn_fault": "program", "lacks": "dataset"})
    assert classify(lacking, None).cause is Cause.USER_ERROR
    verdict = classify(lacking, None, is_elsewhere=True)
    assert (verdict.cause, verdict.proof) == (
        Cause.PREFLIGHT_FAILED,
        "the host was not ready: no corpus, and other hosts have it",
    )
    older = parse_exit_record({"spawn_error": "no script", "spawn_fault": "program"})
    assert classify(older, None, is_elsewhere=True).cause is Cause.USER_ERROR, "it does not say what it lacked"


@pytest.mark.parametrize("side", ["program", "host", "preflight"])
def test_a_host_that_lacks_a_part_of_the_start_reports_that(side: str) -> None:
    document = {"spawn_error": "no engine", "spawn_fault": side}
    assert classify(parse_exit_record({**document, "lacks": "container engine"}), None).has_lacked
    assert not classify(parse_exit_record(document), None).has_lacked, "a further start may succeed"
    reached = classify(parse_exit_record({**document, "lacks": "program"}), None, is_elsewhere=True)
    assert reached.has_lacked == (side != "program"), "another host has it"


def test_what_was_stopped_before_its_start_ends_as_the_stop_states() -> None:
    refused = parse_exit_record({"spawn_error": "not started: cancel", "spawn_fault": "refused"})
    assert classify(refused, StopReason.CANCEL).cause is Cause.CANCELLED
    assert classify(refused, None).cause is Cause.LAUNCH_FAILED


def test_a_launcher_that_dies_alone_is_a_failed_launch() -> None:
    verdict = classify(record(launcher_exit_code=None, launcher_signal=9, ranks={"0": {}}), None)
    assert verdict.cause is Cause.LAUNCH_FAILED
    assert "SIGKILL" in verdict.proof


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"launcher_exit_code": "1"}, "launcher_exit_code"),
        ({"launcher_exit_code": 1, "ranks": {"0": {"signal": "9"}}}, "ranks.0.signal"),
        ({"launcher_exit_code": 1, "ranks": {"-1": {}}}, "ranks"),
        ({"launcher_exit_code": 1, "self_fenced": 1}, "self_fenced"),
        ({}, "launcher_exit_code"),
    ],
)
def test_bad_records_are_refused_by_field(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        parse_exit_record(document)


@pytest.mark.parametrize("code", [EXIT_STOPPED_WITH_CHECKPOINT, EXIT_STOPPED_WITHOUT])
def test_the_codes_by_which_the_runtime_leaves_are_known(code: int) -> None:
    assert classify(record(ranks={"0": failed(exit_code=code)}), None).is_cascade


def test_ranks_keep_their_global_numbers() -> None:
    assert record(ranks={"17": FINE}).ranks == {17: RankExit(exit_code=0)}


@pytest.mark.parametrize(
    "launchers_words",
    [
        "----------\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code.\n----------",
        "----------\nmpirun detected that one or more processes exited with a fault\n  Exit code:    1\n----------",
        "srun: error: gpu-7: task 1: Exited with exit code 1\nslurmstepd-gpu-7: error: *** STEP 1.0 ON gpu-7 CANCELLED",
        "[2026-11-23 09:39:21,771] [INFO] [launch.py:253:sigkill_handler] Killing subprocess 17029",
    ],
    ids=["mpirun", "mpirun-detected", "srun", "deepspeed"],
)
def test_the_proof_is_the_programs_last_word_and_not_its_launchers(launchers_words: str) -> None:
    assert (
        last_words(f"Traceback (most recent call last):\nKeyError: 'tokens'\n{launchers_words}\n")
        == "KeyError: 'tokens'"
    )
    assert last_words(launchers_words)
    first = f"step 5\n{launchers_words}\nTraceback (most recent call last):\nRuntimeError: of the other task\n"
    assert last_words(first) == "RuntimeError: of the other task"
