"""The judge on evidence that is missing, odd or contradicts itself. Ordinary cases are labelled bundles."""

from dataclasses import replace

from watch.forensics.judge import judge_hang
from watch.phases import Phase
from watch.reports import Collective, Frame, HostReport, ProcessState, RankReport, StackSource
from watch.verdicts import Verdict, VerdictKind

C10D = (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3020), Frame("step", "/app/train.py", 60))
LOADER = (Frame("__next__", "torch/utils/data/dataloader.py", 733), Frame("step", "/app/train.py", 52))


def entry(number: int, state: str = "scheduled", **fields: object) -> Collective:
    return replace(Collective("0", number, "all_reduce", (8,), "Float", state), **fields)  # type: ignore[arg-type]


def rank(number: int, *collectives: Collective, stack: tuple[Frame, ...] = C10D, **fields: object) -> RankReport:
    known = RankReport(number, Phase.STEP, step=7, process=ProcessState.SLEEPING, stack=stack, collectives=collectives)
    return replace(known, **fields)  # type: ignore[arg-type]


def judged(*ranks: RankReport) -> Verdict:
    return judge_hang([HostReport("node-a", 1, ranks)])


def test_no_report_and_no_rank_give_a_verdict_without_a_name() -> None:
    for reports in ([], [HostReport("node-a", 1, ())]):
        verdict = judge_hang(reports)
        assert (verdict.kind, verdict.cause, verdict.ranks) == (VerdictKind.HANG, "unknown", ())
        assert verdict.sentence == "No evidence names a rank that holds up the others."
    alone = judged(rank(3, stack=()))
    assert (alone.cause, alone.sentence) == ("unknown", "Rank 3 makes no progress, and no evidence shows why.")


def test_clocks_of_hosts_apart_change_nothing() -> None:
    late = rank(1, entry(4, "completed"), stack=LOADER)
    for at_ms in (0, 1, 4_102_444_800_000):
        verdict = judge_hang(
            [HostReport("a", 1_795_792_065_000, (rank(0, entry(5)),)), HostReport("b", at_ms, (late,))]
        )
        assert (verdict.cause, verdict.ranks, verdict.node) == ("data_loader", (1,), "b")


def test_the_sentence_names_rank_host_gpu_frame_line_and_operation() -> None:
    late = rank(1, entry(4, "completed"), stack=LOADER, gpu="GPU-1", phase=Phase.DATA)
    verdict = judged(rank(0, entry(5)), late, rank(2, entry(5)))
    assert verdict.sentence == (
        "Rank 1 on node-a (GPU-1) waits for its data loader in step (/app/train.py:52) at step 7, phase data; "
        "ranks 0 and 2 wait in all_reduce, number 5 of group 0."
    )
    assert (verdict.operation, verdict.frame, verdict.waiting) == ("all_reduce", LOADER[1], (0, 2))


def test_a_rank_that_only_waits_is_never_accused_by_its_stack_alone() -> None:
    assert judged(rank(0), rank(1), rank(2)).ranks == ()


def test_a_gpu_line_of_one_rank_does_not_outweigh_the_loader_that_another_is_in() -> None:
    printed = ("[rank0]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",)
    verdict = judged(rank(0, entry(5), lines=printed), rank(1, entry(4, "completed"), stack=LOADER))
    assert (verdict.cause, verdict.ranks) == ("data_loader", (1,))
    assert any("uncorrectable ECC" in line for line in verdict.evidence), "it is evidence none the less"


def test_a_program_that_prints_an_exception_and_goes_on_is_not_dead() -> None:
    printed = ("Traceback (most recent call last):", '  File "x"', "KeyError: 'x'")
    verdict = judged(rank(0, entry(5), lines=printed), rank(1, entry(5)), rank(2, entry(4, "completed"), stack=LOADER))
    assert (verdict.cause, verdict.ranks) == ("data_loader", (2,))


def test_ranks_that_enqueue_ahead_wait_at_their_first_open_collective() -> None:
    """NCCL's ranks enqueue several: the newest number says nothing about the one that is stuck."""
    ahead = (entry(5, "started"), entry(6), entry(7))
    verdict = judged(rank(0, *ahead), rank(1, entry(5, "started")), rank(2, *ahead))
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert "started all_reduce, number 5" in verdict.sentence


def test_a_size_that_may_differ_between_ranks_is_no_mismatch() -> None:
    entries = [entry(5, operation="all_to_all", sizes=(number,)) for number in (8, 16)]
    assert judged(rank(0, entries[0]), rank(1, entries[1])).cause == "network"


def test_a_mismatch_that_all_ranks_completed_is_no_cause() -> None:
    odd = [entry(3, "completed", sizes=(number,)) for number in (8, 16)]
    verdict = judged(rank(0, odd[0], entry(5)), rank(1, odd[1], entry(4, "completed"), stack=LOADER))
    assert verdict.cause == "data_loader"


def test_of_two_groups_of_another_kind_each_rank_may_lag_in_one() -> None:
    """A rank that waits in an inner group holds up the outer one, and is not at fault."""
    inner = replace(entry(9), group="tp", ranks=(2, 3), description="mesh_tp")
    verdict = judged(
        rank(0, entry(5)),
        rank(1, entry(5)),
        rank(2, entry(4, "completed"), inner),
        rank(3, entry(4, "completed"), replace(inner, sequence=8, state="completed"), stack=LOADER),
    )
    assert (verdict.cause, verdict.ranks) == ("data_loader", (3,))
    assert (
        "rank 2 waits in all_reduce, number 9 of group tp (mesh_tp), which rank 3 has not entered" in verdict.evidence
    )


def test_a_stopped_process_is_the_cause_whatever_its_stack_is() -> None:
    verdict = judged(rank(0, entry(5)), rank(1, entry(5), process=ProcessState.STOPPED))
    assert (verdict.cause, verdict.ranks) == ("stopped_process", (1,))


def of_kernel(number: int, function: str, *collectives: Collective, **fields: object) -> RankReport:
    stack = (Frame(function, "kernel"),)
    return rank(number, *collectives, stack=stack, stack_source=StackSource.KERNEL, **fields)


def test_a_stopped_rank_may_have_done_more_than_it_has_reported() -> None:
    late = of_kernel(1, "do_signal_stop", entry(4), process=ProcessState.STOPPED)
    assert judged(rank(0, entry(5)), late).sentence == (
        "Rank 1 on node-a is stopped by a signal; its last report was at step 7, phase step; "
        "rank 0 waits in all_reduce, number 5 of group 0."
    )


def test_the_kernels_function_is_shown_where_it_explains_the_wait() -> None:
    sentence = judged(rank(0, entry(5)), of_kernel(1, "rpc_wait_bit_killable", entry(4, "completed"))).sentence
    assert sentence.startswith("Rank 1 on node-a waits for storage in rpc_wait_bit_killable (kernel) at step 7")


def test_without_any_collective_the_rank_that_stands_apart_is_named() -> None:
    verdict = judged(rank(0), rank(1, stack=LOADER), rank(2))
    assert (verdict.cause, verdict.ranks, verdict.waiting) == ("data_loader", (1,), (0, 2))


def test_of_a_thousand_ranks_one_is_named() -> None:
    ranks = [rank(number, entry(5)) for number in range(1024)]
    ranks[700] = rank(700, entry(4, "completed"), stack=LOADER)
    verdict = judged(*ranks)
    assert (verdict.ranks, len(verdict.waiting)) == ((700,), 1023)
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1015 others wait in" in verdict.sentence


def test_an_xid_that_an_agent_measured_names_the_rank_of_that_gpu() -> None:
    ranks = tuple(rank(number, entry(1), gpu=f"GPU-{number}") for number in range(3))
    lines = ("NVRM: Xid (GPU-2): 79, GPU has fallen off the bus.",)
    readings = {"gpu.GPU-2.power_w": 61.0, "gpu.GPU-2.utilisation": 100.0, "port.mlx5_0/1.packet_seq_err": 4.0}
    output = HostReport("node-a", 0, (), ("its launcher's output, from another file",))
    found = judge_hang([HostReport("node-a", 1, ranks, lines, readings), output])
    assert (found.cause, found.ranks, found.gpu) == ("gpu", (2,), "GPU-2")
    assert "GPU of rank 2 (GPU-2): utilisation 100 %, 61 W" in found.evidence
    assert "port mlx5_0/1 of node-a: packet_seq_err grew by 4 in the last minutes" in found.evidence
    by_program = judge_hang([HostReport("node-a", 1, ranks, ("NVRM: Xid (GPU-2): 31, MMU fault",))])
    assert by_program.cause != "gpu", "a program causes it by itself"


def test_a_rank_whose_sensor_answered_too_late_is_not_accused_while_its_stack_shows_that_it_waits() -> None:
    """A busy host: faulthandler wrote the stack, and the collectives are missing."""
    members = (0, 1, 2)
    others = [rank(number, entry(4, "completed", ranks=members), entry(5, ranks=members)) for number in (1, 2)]
    assert judged(rank(0, stack_source=StackSource.FAULTHANDLER), *others).ranks == ()
    assert judged(rank(0, stack=()), *others).ranks == (0,), "nothing is known of it"


def test_the_rank_that_left_its_own_order_is_named_where_the_others_answered_too_late() -> None:
    names = ("all_reduce", "broadcast", "all_reduce", "broadcast", "broadcast")
    entered = [entry(number, "completed", operation=name, ranks=(0, 1)) for number, name in enumerate(names)]
    skips = rank(1, *entered[:-1], replace(entered[-1], state="scheduled"))
    verdict = judged(rank(0, stack_source=StackSource.FAULTHANDLER), skips)
    assert (verdict.ranks, verdict.cause, verdict.operation) == ((1,), "skipped_collective", "all_reduce")
