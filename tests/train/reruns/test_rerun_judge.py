"""What two runs of the same steps on the same GPUs show; and that both judges name the same rank."""

import json
import warnings
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from muster.train.checkpoint.state import Trained
from muster.train.reruns.orders import RerunOrder
from muster.train.reruns.repeatable import Repeatable
from muster.train.reruns.rerun import MOST_RANKS
from muster.train.reruns.rerun_judge import AGAIN, REPEATED, TRANSIENT, UNDECIDED, Compared, Found, Suspected, judge
from muster.train.reruns.results import (
    BEFORE,
    MOST_LOSSES,
    Journal,
    Result,
    compare,
    loss_digest,
    settings_digest,
    state_digest,
)
from watch.reruns.judge import RerunCause, judge_elsewhere
from watch.reruns.results import result_of
from workers.host.supervisor.record.rank_socket import LONGEST_LINE

SAME, STATE_ALONE = Compared(is_same=True, first_step=0, num_before=9), Compared(is_same=False, first_step=0)
SILENT = replace(STATE_ALONE, has_losses=False)
MAJORITY_ON_2, OF_VALUES, OF_BUFFERS = (
    Suspected((2,)),
    Suspected(is_of_values=True),
    Suspected((1,), is_of_buffers=True),
)
STAGES = Suspected(group=(0, 2))
"""Copies of a pipeline's first stage, whose second stage is on ranks 1 and 3."""


def from_step(step: int, num_before: int = 9, *, is_repeatable: bool = True) -> Compared:
    return Compared(is_same=False, first_step=step, num_before=num_before, is_repeatable=is_repeatable)


@pytest.mark.parametrize(
    ("compared", "is_again", "suspected", "found"),
    [
        ([SAME, STATE_ALONE], False, Suspected(), Found(TRANSIENT, (1,))),
        ([from_step(12), from_step(11)], False, Suspected(), Found(TRANSIENT, (1,))),
        ([STATE_ALONE, from_step(11)], False, Suspected(), Found(TRANSIENT, (1,))),
        ([from_step(11), from_step(11)], False, Suspected(), Found(TRANSIENT, ())),
        ([STATE_ALONE, STATE_ALONE], False, Suspected(), Found(TRANSIENT, ())),
        ([from_step(12), from_step(12), from_step(11)], False, MAJORITY_ON_2, Found(TRANSIENT, (2,))),
        ([from_step(12), from_step(11), SAME], False, MAJORITY_ON_2, Found(UNDECIDED, ())),
        ([SAME, SAME], False, Suspected(), Found(UNDECIDED, ())),
        ([SAME, from_step(9)], False, Suspected(), Found(UNDECIDED, ())),
        ([SAME, from_step(9)], True, Suspected((1,)), Found(UNDECIDED, ())),
        ([SAME, SAME], True, Suspected(), Found(REPEATED, ())),
        ([SAME, SAME], True, Suspected((0,)), Found(REPEATED, (0,))),
        ([SAME] * 4, True, STAGES, Found(REPEATED, (0, 2))),
        ([from_step(12), from_step(11)], True, Suspected(), Found(AGAIN, ())),
        ([SAME, SAME, from_step(11)], True, MAJORITY_ON_2, Found(AGAIN, ())),
        ([SAME, SAME, from_step(11, is_repeatable=False)], False, MAJORITY_ON_2, Found(UNDECIDED, ())),
        ([from_step(12), from_step(11, is_repeatable=False)], False, Suspected(), Found(UNDECIDED, ())),
        ([SAME, from_step(11, 3)], False, OF_VALUES, Found(TRANSIENT, (1,))),
        ([SAME, from_step(11, 2)], False, OF_VALUES, Found(UNDECIDED, ())),
        ([SILENT, from_step(11)], False, OF_VALUES, Found(UNDECIDED, ())),
        ([SAME, STATE_ALONE], False, OF_BUFFERS, Found(UNDECIDED, ())),
        ([SAME, SAME], True, OF_BUFFERS, Found(UNDECIDED, ())),
        ([SILENT, from_step(12), SILENT, from_step(11)], False, STAGES, Found(TRANSIENT, ())),
        ([SAME, SAME, SILENT, from_step(11)], False, STAGES, Found(TRANSIENT, (2,))),
        ([SAME, SAME, SAME, from_step(11)], False, STAGES, Found(UNDECIDED, ())),
        ([SILENT, from_step(12)], False, Suspected(), Found(TRANSIENT, ())),
    ],
)
def test_what_two_runs_show(compared: list[Compared], suspected: Suspected, found: Found, *, is_again: bool) -> None:
    """The fault is of step 10 or later."""
    assert judge(compared, suspected, first_bad=10, is_again=is_again) == found
    assert str(found)


Bits = st.dictionaries(st.integers(10, 16), st.integers(0, 3), min_size=7, max_size=7)


@given(st.lists(st.tuples(Bits, Bits, st.integers(0, 2), st.integers(0, 2)), min_size=2, max_size=5))
def test_in_place_and_elsewhere_the_same_ranks_are_named(
    ranks: list[tuple[dict[int, int], dict[int, int], int, int]],
) -> None:
    """One judge is within the job, and one in the control plane, which does not import the other."""
    firsts = [Result(state, losses, "s") for losses, _, state, _ in ranks]
    seconds = [Result(state, losses, "s") for _, losses, _, state in ranks]
    compared = [compare(*each, 10, 16, is_at_end=True) for each in zip(firsts, seconds, strict=True)]
    here = judge(compared, Suspected(), first_bad=10, is_again=False)
    runs = [
        result_of(
            [(rank, *each.document(10, 16)) for rank, each in enumerate(results)],  # type: ignore[misc]
            {rank: f"{place}{rank}" for rank in range(len(ranks))},
            end_step=16,
            is_again=place == "A",
        )
        for place, results in (("A", firsts), ("B", seconds))
    ]
    there = judge_elsewhere(*runs, first_bad=10)
    assert there.ranks == here.ranks
    assert (there.cause is RerunCause.PERSISTENT) is (here.kind == TRANSIENT)


def losses(last: int, **other: float) -> dict[int, int]:
    """Return the losses of steps 5 to ``last``, of which ``other`` states some: ``s12=0.5``."""
    journal = Journal()
    for step in range(1, last + 1):
        journal.note(step, other.get(f"s{step}", step / 3))
    return journal.between(4, last)


def test_a_journal_forgets_what_is_done_again() -> None:
    journal = Journal()
    for step in range(1, 31):
        journal.note(step, step / 3)
    journal.note(31, None)
    kept = journal.between(4, 40)
    assert kept == losses(30)
    assert len(set(kept.values())) == 26
    journal.forget(20)
    journal.note(21, float("nan"))
    again = Result(0, journal.between(4, 40))
    assert again.first_difference(Result(0, kept)) == 21


@pytest.mark.parametrize("fault_at", [10, 37, 38, 400, 999, 1000])
def test_a_result_is_bounded_and_shows_a_difference_at_any_step(fault_at: int) -> None:
    """Up to 28 steps after the last agreement the step itself is shown, later the next mark."""
    (state, near), (_, other) = (
        Result(255, each).document(10, 1000) for each in (losses(1000), losses(1000, **{f"s{fault_at}": 0.5}))
    )
    assert state == "ff"
    assert len(near) == len(other) == MOST_LOSSES  # type: ignore[arg-type]
    assert [step for step, _ in near][: BEFORE + 28] == list(range(10 - BEFORE, 38))  # type: ignore[attr-defined]
    first = next(mine[0] for mine, its in zip(near, other, strict=True) if mine != its)  # type: ignore[call-overload]
    assert first == fault_at or (fault_at > 37 and fault_at <= first < fault_at + 61)


def test_the_largest_report_fits_a_line_of_the_supervisor() -> None:
    begin = (1 << 53) - 2000
    all_steps = {step: loss_digest(float(step)) for step in range(begin - 9, begin + 1001)}
    longest = Result((1 << 64) - 1, all_steps).document(begin, begin + 1000)
    assert len(json.dumps([[(1 << 31) - 1, *longest]] * MOST_RANKS)) < LONGEST_LINE - 4096


def test_a_fault_that_comes_earlier_is_compared_by_its_losses_up_to_there() -> None:
    """A save within the second run compares earlier than the first run did: no state is known of there."""
    first = Result(1, losses(12), "s")
    assert compare(first, Result(2, losses(11), "s"), 10, 11, is_at_end=False).is_same
    other = compare(first, Result(2, losses(11, s10=0.5), "s"), 10, 11, is_at_end=False)
    assert (other.is_same, other.first_step) == (False, 10)
    assert not compare(Result(1, {}), Result(2, {}), 10, 11, is_at_end=False).is_same, "nothing shows it"
    assert not compare(first, Result(2, losses(12), "s"), 10, 12, is_at_end=True).is_same


def test_a_program_that_changes_its_settings_or_hides_them_repeats_nothing() -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trained = Trained(model, optimizer, None, {"drawn": Drawn()})
    first, again = settings_digest(trained), settings_digest(trained)
    assert first == again != ""
    trained.extras["drawn"].load_state_dict({"seed": 2})
    drawn = settings_digest(trained)
    optimizer.param_groups[0]["lr"] = 0.05
    assert len({first, drawn, settings_digest(trained)}) == 3
    trained.extras["drawn"].load_state_dict({})
    assert settings_digest(trained) == ""
    for settings, is_repeatable in ((first, True), (drawn, False), ("", False)):
        found = compare(Result(1, losses(12), settings), Result(2, losses(12), first), 10, 12, is_at_end=True)
        assert found.is_repeatable is is_repeatable


class Drawn:
    """A program's own generator of random numbers."""

    def __init__(self) -> None:
        self.state = {"seed": 1}

    def state_dict(self) -> dict[str, Any]:
        return {"seed": self.state["seed"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_a_buffer_that_a_program_changes_on_one_rank_is_no_part_of_the_state() -> None:
    model = torch.nn.BatchNorm1d(2)
    trained = Trained(model, None, None, {})
    first = state_digest(trained)
    assert model.running_mean is not None
    model.running_mean.fill_(5.0)
    assert state_digest(trained) == first
    model.bias.requires_grad = False
    frozen = state_digest(trained)
    with torch.no_grad():
        model.bias.fill_(5.0)
    assert state_digest(trained) == frozen != first
    with torch.no_grad():
        model.weight.fill_(5.0)
    assert state_digest(trained) != frozen


def test_a_kernel_without_a_repeatable_form_is_noticed_however_a_program_filters_warnings() -> None:
    is_on, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.use_deterministic_algorithms(mode=True, warn_only=True)
            repeatable = Repeatable()
            assert repeatable
            assert Repeatable(), "two runs of one process"
            assert repeatable
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            assert repeatable
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore")
                assert not repeatable, "the message would be hidden"
            with warnings.catch_warnings():
                warnings.resetwarnings()
                assert not repeatable, "nothing is read any more"
            assert repeatable
            torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]))
            assert not repeatable
            torch.use_deterministic_algorithms(mode=True)
            assert repeatable, "torch refuses such a kernel"
            torch.use_deterministic_algorithms(mode=False)
            assert not repeatable
    finally:
        torch.use_deterministic_algorithms(mode=is_on, warn_only=warns)


def test_an_order_names_the_field_that_cannot_be_read() -> None:
    assert RerunOrder.of(None) is RerunOrder.of("") is None
    assert RerunOrder.of("{}") == RerunOrder()
    assert RerunOrder.of('{"step": 12, "first_bad": 10, "ranks": [0, 1]}') == RerunOrder(
        12, 10, (0, 1), is_offered=False
    )
    order = RerunOrder.of('{"step": 12, "num_ranks": 4, "is_offered": true}')
    assert order is not None
    assert order == RerunOrder(12, 12, (), 4)
    assert (order.fits(4), order.fits(2), RerunOrder(12).fits(2)) == (True, False, True)
    assert order.done() == RerunOrder()
    for text, words in (
        ("[]", "must be a JSON object"),
        ("{", "must be a JSON object"),
        ('{"step": -1}', "step=-1: must be a number of steps"),
        ('{"step": true}', "step=True: must be a number of steps"),
        ('{"first_bad": "a"}', "first_bad='a': must be a number of steps"),
        ('{"num_ranks": 1.5}', "num_ranks=1.5: must be a number of ranks"),
        ('{"is_offered": 1}', "is_offered=1: must be true or false"),
        ('{"is_offered": [2]}', r"is_offered=\[2\]: must be true or false"),
        ('{"ranks": [0, "1"]}', "ranks=.*must be a list of ranks"),
    ):
        with pytest.raises(ValueError, match=f"MUSTER_RERUN.*{words}"):
            RerunOrder.of(text)
