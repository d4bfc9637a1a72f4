"""The phase of a rank and its ticks, as the runtime and the program note them."""

import pytest
import torch

from muster.train.report.pace import StepTiming
from muster.train.runtime.devices import Host
from muster.train.watch.activity import ACTIVITY, END, FIRST_STEP, RESTORE, SAVE, Activity, declared


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ACTIVITY.reset()


def test_a_run_passes_through_its_phases() -> None:
    activity = Activity()
    seen = [activity.phase()]
    activity.move_to(RESTORE)
    seen.append(activity.phase())
    activity.begin_steps(40)
    seen.append(activity.phase())
    activity.end_step(41)
    with activity.within(SAVE):
        seen.append(activity.phase())
    seen.append(activity.phase())
    activity.move_to(END)
    seen.append(activity.phase())
    assert [phase for phase, _ in seen] == ["start", "restore", "first_step", "save", "step", "end"]
    assert activity.step == 41


def test_a_declared_phase_ends_with_its_block_also_by_an_exception() -> None:
    seen = []

    def fails() -> None:
        with declared("eval"):
            seen.append(ACTIVITY.phase())
            with declared("data"):
                seen.append(ACTIVITY.phase())
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert seen == [("eval", True), ("data", True)]
    assert ACTIVITY.phase() == ("start", False)


def test_another_phase_is_refused_with_the_ones_that_exist() -> None:
    with pytest.raises(ValueError, match="phase 'lunch': must be one of data, compile, eval, save, restore, step"):
        declared("lunch").__enter__()


@pytest.mark.parametrize("is_timed", [True, False])
def test_the_hooks_of_a_step_count_its_parts_and_see_an_evaluation(*, is_timed: bool) -> None:
    model, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    timing = StepTiming(Host(), is_on=is_timed, work=None, ranks_per_replica=1)
    timing.watch(model, optimizer)
    ACTIVITY.begin_steps(0)
    timing.begin()
    before = ACTIVITY.ticks
    model(inputs).sum().backward()
    optimizer.step()
    assert (ACTIVITY.ticks - before >= 4) == is_timed
    assert ACTIVITY.phase() == (FIRST_STEP, False)
    model.eval()
    model(inputs)
    assert ACTIVITY.phase() == ("eval" if is_timed else FIRST_STEP, False)
    model.train()
    with torch.no_grad():
        model(inputs)
    assert ACTIVITY.phase() == ("eval" if is_timed else FIRST_STEP, False)
    model(inputs)
    assert ACTIVITY.phase() == (FIRST_STEP, False)
    timing.leave()


def test_an_agreement_is_open_while_this_rank_waits_in_it() -> None:
    with ACTIVITY.agreeing("max"):
        assert (ACTIVITY.agreements, ACTIVITY.last_agreement, ACTIVITY.is_agreeing) == (1, "max", True)
    assert not ACTIVITY.is_agreeing
    with pytest.raises(OSError, match="a rank has left"), ACTIVITY.agreeing("max"):
        raise OSError("a rank has left")
    assert not ACTIVITY.is_agreeing, "also after one that fails"
