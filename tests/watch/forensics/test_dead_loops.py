"""The judge on ranks that use the processor and do nothing else: the cause, the sentence, and what outweighs them."""

from dataclasses import replace

import pytest

from muster.domain.job.verdicts import BLAMES_PROGRAM, VerdictKind
from muster.domain.policy.watch import WatchPolicy
from watch.false_alarms import may_be_muted, proposal_of
from watch.forensics.documents import from_document, to_document
from watch.forensics.judge import judge_hang
from watch.forensics.sentences import span_words
from watch.phases import Phase
from watch.reports import Frame, HostReport, ProcessState, RankReport, StackSource
from watch.verdicts import Verdict

SIX_H = 6 * 3600.0
LOOP = RankReport(
    1,
    Phase.IMPORT,
    process=ProcessState.RUNNING,
    cpu_share=1.0,
    has_sensor=False,
    busy_quiet_s=SIX_H + 30,
)
WAITS = replace(LOOP, rank=0, still_s=SIX_H + 30, process=ProcessState.SLEEPING, cpu_share=0.0)
SPIN = (Frame("spin", "/app/train.py", 17), Frame("<module>", "/app/train.py", 30))
WHAT = "has used the processor for 6 h without output, I/O, a change of its processes or work on a GPU"


def judged(*ranks: RankReport, is_busy: bool = True, lines: tuple[str, ...] = ()) -> Verdict:
    return judge_hang([HostReport("node-a", 1, ranks, lines, is_busy=is_busy)])


def test_the_rank_in_the_loop_is_named_and_not_the_one_that_waits_for_it() -> None:
    verdict = judged(WAITS, LOOP)
    assert (verdict.cause, verdict.ranks) == ("dead_loop", (1,))
    assert verdict.sentence == f"Rank 1 on node-a {WHAT}."
    assert "nothing but processor time for 21630 s" in verdict.evidence[0]
    assert verdict.cause in BLAMES_PROGRAM


def test_its_line_follows_where_the_stack_is_known() -> None:
    verdict = judged(WAITS, replace(LOOP, stack=SPIN, stack_source=StackSource.PY_SPY))
    assert verdict.cause == "dead_loop"
    assert verdict.sentence == f"Rank 1 on node-a {WHAT}, in spin (/app/train.py:17)."
    alone = judged(replace(LOOP, stack=SPIN, stack_source=StackSource.PY_SPY))
    assert (alone.cause, alone.ranks) == ("dead_loop", (1,))


def test_several_ranks_in_a_loop_are_named_together() -> None:
    sentence = judged(replace(LOOP, rank=0), LOOP).sentence
    assert sentence.startswith("Ranks 0 and 1 on node-a have used the processor for 6 h without ")


def test_a_report_without_the_field_names_no_loop() -> None:
    """As of release 0.1.0, or of a rank that is overdue by another limit."""
    document = to_document(HostReport("node-a", 1, (replace(LOOP, busy_quiet_s=None),)))
    del document["is_busy"]
    del document["ranks"][0]["busy_quiet_s"]
    old = from_document(document)
    assert (old.is_busy, old.ranks[0].busy_quiet_s) == (False, None)
    assert judge_hang([old]).cause != "dead_loop"
    for verdict in (judged(LOOP, is_busy=False), judged(replace(LOOP, busy_quiet_s=None))):
        assert verdict.cause != "dead_loop"
    whole = HostReport("node-a", 1, (LOOP,), is_busy=True)
    assert from_document(to_document(whole)) == whole


@pytest.mark.parametrize(
    ("known", "cause"),
    [
        ({"process": ProcessState.STOPPED}, "stopped_process"),
        ({"stack": (Frame("synchronize", "torch/cuda/streams.py", 100), *SPIN)}, "gpu"),
        ({"stack": (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 3020), *SPIN)}, "unknown"),
        ({"gpu": "GPU-1"}, "unknown"),
        ({"gpu": "GPU-1", "stack": SPIN}, "dead_loop"),
    ],
    ids=str,
)
def test_what_the_rank_waits_for_outweighs_the_loop(known: dict[str, object], cause: str) -> None:
    """A call of CUDA may wait in a loop, so a rank with a GPU is no dead loop before its stack shows one."""
    source = StackSource.PY_SPY if "stack" in known else StackSource.NONE
    verdict = judged(replace(LOOP, stack_source=source, **known))  # type: ignore[arg-type]
    assert verdict.cause == cause


def test_a_fault_of_the_gpu_outweighs_the_loop() -> None:
    gpu = "GPU-0e7b1c2d-3f4a-5b6c-7d8e-9f0a1b2c3d4e"
    line = f"NVRM: Xid ({gpu}): 79, GPU has fallen off the bus."
    assert judged(replace(LOOP, gpu=gpu), lines=(line,)).cause == "gpu"


def test_false_alarms_propose_a_longer_limit_of_its_own() -> None:
    assert may_be_muted(VerdictKind.HANG, "dead_loop")
    words = proposal_of(VerdictKind.HANG, "import", "dead_loop", 2, WatchPolicy())
    assert "raise `watch.busy_quiet_s` from 21600 s to 43200 s" in words


@pytest.mark.parametrize(
    ("span_s", "words"), [(3.2, "3 s"), (119.0, "119 s"), (300.0, "5 min"), (7199.0, "120 min"), (SIX_H, "6 h")]
)
def test_a_span_is_stated_in_its_own_unit(span_s: float, words: str) -> None:
    assert span_words(span_s) == words


def on_gpu(*ranks: RankReport, readings: dict[str, float] | None = None) -> Verdict:
    """Judge ranks that only use the processor, while their GPUs are known to wait in a collective."""
    return judge_hang([HostReport("node-a", 1, ranks, (), readings or {}, is_busy=True, needs_gpus=True)])


def test_ranks_whose_gpus_wait_in_a_collective_are_victims_wherever_their_program_stands() -> None:
    quiet = replace(LOOP, busy_quiet_s=1_900.0, stack=SPIN, stack_source=StackSource.PY_SPY)
    readings = {"gpu.GPU-1.utilisation": 100.0, "gpu.GPU-1.tensor_active_percent": 0.0, "gpu.GPU-1.power_w": 210.0}
    verdict = on_gpu(replace(quiet, rank=0), replace(quiet, gpu="GPU-1"), readings=readings)
    assert (verdict.cause, verdict.ranks, verdict.node) == ("unknown", (), "")
    assert verdict.sentence.startswith("Ranks 0 and 1 wait on the GPU, which has been utilised for 32 min without ")
    assert "GPU of rank 1 (GPU-1): utilisation 100 %, tensor cores active 0 %, 210 W" in verdict.evidence
    alone = on_gpu(quiet)
    assert (alone.ranks, alone.sentence[:25]) == ((), "Rank 1 waits on the GPU, ")


def test_a_stopped_or_sleeping_rank_among_them_is_named() -> None:
    quiet = replace(LOOP, busy_quiet_s=1_900.0)
    stopped = replace(WAITS, process=ProcessState.STOPPED)
    verdict = on_gpu(stopped, quiet)
    assert (verdict.cause, verdict.ranks, verdict.waiting) == ("stopped_process", (0,), (1,))
    sleeping = replace(WAITS, stack=SPIN, stack_source=StackSource.PY_SPY)
    verdict = on_gpu(sleeping, quiet)
    assert (verdict.cause, verdict.ranks, verdict.waiting) == ("endless_python", (0,), (1,))
