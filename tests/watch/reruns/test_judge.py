"""The judgement by re-runs elsewhere, for every pattern of ranks, faults and GPUs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watch.reruns.judge import RerunCause, judge_elsewhere, judge_in_place
from watch.reruns.results import RankResult, RunResult, from_document, to_document

FIRST_BAD, LAST = 23, 26


def run(
    num_ranks: int, *, gpus: str, is_again: bool, culprit: int | None = None, from_step: int = FIRST_BAD
) -> RunResult:
    """Return a run of data-parallel ranks. A culprit's loss is false at once, the others' one step later."""
    ranks = {}
    for rank in range(num_ranks):
        false_from = LAST + 1 if culprit is None else from_step + (rank != culprit)
        losses = {step: f"{rank}{step}{'f' if step >= false_from else ''}" for step in range(FIRST_BAD - 3, LAST + 1)}
        state = "a" if culprit is None else f"b{'c' if rank == culprit else ''}"
        ranks[rank] = RankResult(state, losses, f"{gpus}{rank}")
    return RunResult(LAST, is_again, ranks)


@given(num_ranks=st.integers(2, 8), data=st.data())
def test_the_gpu_of_the_rank_that_differs_first_is_named(num_ranks: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, num_ranks - 1))
    since = data.draw(st.integers(FIRST_BAD, LAST))
    first = run(num_ranks, gpus="A", is_again=True, culprit=culprit, from_step=since)
    second = run(num_ranks, gpus="B", is_again=False)
    found = judge_elsewhere(first, second, first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.PERSISTENT, (culprit,))


@given(num_ranks=st.integers(1, 8), data=st.data())
def test_the_same_fault_on_each_gpu_is_the_programs(num_ranks: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, num_ranks - 1))
    first = run(num_ranks, gpus="A", is_again=True, culprit=culprit)
    elsewhere = run(num_ranks, gpus="B", is_again=True, culprit=culprit)
    assert judge_elsewhere(first, elsewhere, first_bad=FIRST_BAD).cause is RerunCause.PROGRAM
    stayed = replace(elsewhere.ranks[culprit], place=first.ranks[culprit].place)
    same_gpu = replace(elsewhere, ranks={**elsewhere.ranks, culprit: stayed})
    assert judge_elsewhere(first, same_gpu, first_bad=FIRST_BAD).cause is RerunCause.UNDECIDED
    others = [rank for rank in range(num_ranks) if rank != culprit]
    if others:
        found = judge_elsewhere(first, same_gpu, first_bad=FIRST_BAD, suspects=others)
        assert found.cause is RerunCause.PROGRAM, "the rank that stayed is no suspect"


@given(num_ranks=st.integers(2, 8), data=st.data())
def test_no_gpu_is_named_that_was_not_left(num_ranks: int, data: st.DataObject) -> None:
    culprit = data.draw(st.integers(0, num_ranks - 1))
    first = run(num_ranks, gpus="A", is_again=True, culprit=culprit)
    clean = run(num_ranks, gpus="B", is_again=False)
    stayed = replace(clean.ranks[culprit], place=first.ranks[culprit].place)
    found = judge_elsewhere(first, replace(clean, ranks={**clean.ranks, culprit: stayed}), first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.UNDECIDED, ())


@given(num_ranks=st.integers(1, 8), step=st.integers(FIRST_BAD - 3, FIRST_BAD - 1), is_again=st.booleans())
def test_a_program_that_does_not_repeat_itself_accuses_nothing(num_ranks: int, step: int, *, is_again: bool) -> None:
    first = run(num_ranks, gpus="A", is_again=True, culprit=0)
    second = run(num_ranks, gpus="B", is_again=is_again)
    odd = replace(second.ranks[num_ranks - 1], losses={**second.ranks[num_ranks - 1].losses, step: "0dd"})
    found = judge_elsewhere(first, replace(second, ranks={**second.ranks, num_ranks - 1: odd}), first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.UNDECIDED, ())


def test_ranks_that_all_differ_at_once_name_none() -> None:
    first = run(2, gpus="A", is_again=True, culprit=0)
    second = run(2, gpus="B", is_again=False)
    without_losses = [
        replace(each, ranks={rank: replace(one, losses={}) for rank, one in each.ranks.items()})
        for each in (first, second)
    ]
    found = judge_elsewhere(*without_losses, first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.PERSISTENT, ())


def test_what_shows_nothing_is_undecided() -> None:
    first = run(2, gpus="A", is_again=True, culprit=0)
    again = replace(run(2, gpus="B", is_again=True, culprit=1), end_step=LAST)
    assert judge_elsewhere(first, again, first_bad=FIRST_BAD).cause is RerunCause.UNDECIDED, "other bits"
    unchanged = replace(first, is_again=False)
    assert judge_elsewhere(first, unchanged, first_bad=FIRST_BAD).cause is RerunCause.UNDECIDED
    assert judge_elsewhere(first, RunResult(LAST, False, {}), first_bad=FIRST_BAD).cause is RerunCause.UNDECIDED


def test_a_fault_that_comes_earlier_elsewhere_is_compared_up_to_there() -> None:
    first = run(2, gpus="A", is_again=True, culprit=0)
    again = run(2, gpus="B", is_again=True, culprit=0)
    until = FIRST_BAD + 1
    ranks = {
        rank: RankResult("e", {step: loss for step, loss in each.losses.items() if step <= until}, each.place)
        for rank, each in again.ranks.items()
    }
    found = judge_elsewhere(first, RunResult(until, True, ranks), first_bad=FIRST_BAD)
    assert found.cause is RerunCause.PROGRAM


def pipelines(*, gpus: str, is_again: bool) -> RunResult:
    """Return a run of two pipelines of two stages, whose last stages 1 and 3 alone report losses."""
    found = run(4, gpus=gpus, is_again=is_again, culprit=3 if is_again else None)
    ranks = {rank: each if rank % 2 else replace(each, losses={}) for rank, each in found.ranks.items()}
    return replace(found, ranks=ranks)


def test_the_reporter_of_a_loss_is_not_named_for_the_ranks_with_the_copies() -> None:
    """The fault is on rank 2, a first stage: its last stage, rank 3, shows it first."""
    runs = pipelines(gpus="A", is_again=True), pipelines(gpus="B", is_again=False)
    for suspects, is_of_values in (((0, 2), False), ((3,), True), ((), True)):
        found = judge_elsewhere(*runs, first_bad=FIRST_BAD, suspects=suspects, is_of_values=is_of_values)
        assert found.ranks == (), (suspects, is_of_values)
    assert judge_elsewhere(*runs, first_bad=FIRST_BAD, suspects=(1, 3)).ranks == (3,), "copies of the last stage"
    named = judge_elsewhere(*runs, first_bad=FIRST_BAD, suspects=(2,))
    assert named.ranks == (2,), "most copies name it"


@pytest.mark.parametrize(("num_before", "cause"), [(3, RerunCause.PERSISTENT), (2, RerunCause.UNDECIDED)])
def test_a_value_fault_names_a_gpu_only_after_enough_repeated_losses(num_before: int, cause: RerunCause) -> None:
    first = run(2, gpus="A", is_again=True, culprit=0)
    second = replace(run(2, gpus="B", is_again=False), from_step=FIRST_BAD - 1 - num_before)
    found = judge_elsewhere(first, second, first_bad=FIRST_BAD, is_of_values=True)
    assert found.cause is cause
    assert judge_elsewhere(first, second, first_bad=FIRST_BAD).ranks == (0,), "copies that differ prove more"


def test_a_value_fault_of_a_rank_that_is_not_suspected_names_none() -> None:
    """Rank 0 differs first, and rank 1 alone has the value that is no number."""
    runs = run(2, gpus="A", is_again=True, culprit=0), run(2, gpus="B", is_again=False)
    assert judge_elsewhere(*runs, first_bad=FIRST_BAD, suspects=(1,), is_of_values=True).ranks == ()


def test_an_attempt_that_begins_at_a_later_checkpoint_is_compared_from_there() -> None:
    """In place the checkpoint before the newest was restored."""
    first = run(2, gpus="A", is_again=True, culprit=0)
    later = run(2, gpus="B", is_again=False)
    ranks = {
        rank: replace(each, losses={step: loss for step, loss in each.losses.items() if step >= FIRST_BAD - 1})
        for rank, each in later.ranks.items()
    }
    elsewhere = replace(later, ranks=ranks, from_step=FIRST_BAD - 2)
    found = judge_elsewhere(first, elsewhere, first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.PERSISTENT, (0,))
    too_late = replace(elsewhere, from_step=FIRST_BAD)
    assert judge_elsewhere(first, too_late, first_bad=FIRST_BAD).cause is RerunCause.UNDECIDED


def test_runs_of_different_numbers_of_ranks_decide_nothing() -> None:
    first = replace(run(2, gpus="A", is_again=True, culprit=0), num_ranks=2)
    alone = replace(run(1, gpus="B", is_again=False), num_ranks=1)
    found = judge_elsewhere(first, alone, first_bad=FIRST_BAD)
    assert (found.cause, found.ranks) == (RerunCause.UNDECIDED, ())


def test_an_earlier_fault_without_losses_is_not_shown_to_be_the_same() -> None:
    first, again = run(2, gpus="A", is_again=True), run(2, gpus="B", is_again=True)
    silent = {rank: replace(each, losses={}) for rank, each in again.ranks.items()}
    found = judge_elsewhere(first, RunResult(LAST - 1, True, silent), first_bad=FIRST_BAD)
    assert found.cause is RerunCause.UNDECIDED


@pytest.mark.parametrize(
    ("found", "ranks", "cause", "named"),
    [
        ("transient", (1,), RerunCause.TRANSIENT, (1,)),
        ("transient", (), RerunCause.TRANSIENT, ()),
        ("repeated", (0, 1), RerunCause.REPEATED, ()),
        ("again", (2,), RerunCause.UNDECIDED, ()),
        ("again", (), RerunCause.UNDECIDED, ()),
        ("undecided", (1,), RerunCause.UNDECIDED, ()),
    ],
)
def test_in_place_the_ranks_findings_decide(
    found: str, ranks: tuple[int, ...], cause: RerunCause, named: tuple[int, ...]
) -> None:
    outcome = judge_in_place(found, ranks)
    assert (outcome.cause, outcome.ranks) == (cause, named)


def test_a_result_is_kept_as_it_is() -> None:
    first = replace(run(3, gpus="A", is_again=True, culprit=2), from_step=20, num_ranks=3)
    document = to_document(first)
    assert from_document(document) == first
    older = {name: value for name, value in document.items() if name not in {"from_step", "num_ranks"}}
    assert from_document(older) == replace(first, from_step=0, num_ranks=0), "stored before they were"
