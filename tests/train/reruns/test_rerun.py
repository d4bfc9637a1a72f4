"""What an attempt may request after its order's re-run, and the operation that it states for a burn-in."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from muster.train.checkpoint.state import Trained
from muster.train.parallel.ranks import Agreement
from muster.train.reruns.operations import operation_of
from muster.train.reruns.orders import RerunOrder
from muster.train.reruns.rerun import Rerun
from muster.train.runtime.divergence import DivergedError
from muster.train.values.replica_check import ReplicaError
from muster.train.values.replica_judge import ReplicaFault

ORDER = RerunOrder(12, 10, (0,), 1)
OF_BUFFERS = ReplicaError(ReplicaFault((), (0, 1), "best", 1, 12, 9, is_of_buffers=True))


class Played:
    """A re-run of one rank, and the reports that it sends."""

    def __init__(self, order: RerunOrder | None, step: int = 8) -> None:
        self.sent: list[dict[str, Any]] = []
        channel: Any = SimpleNamespace(send=lambda _, **fields: self.sent.append(fields))
        self.rerun = Rerun(Trained(torch.nn.Linear(1, 1), None, None, {}), Agreement(0, 1, None), channel, order)
        self.rerun.start(step)


@pytest.mark.parametrize(("order", "step"), [(RerunOrder(12, 10, (0,), 2), 8), (ORDER, 12), (RerunOrder(), 8)])
def test_with_another_number_of_ranks_or_a_later_state_nothing_is_run_again(order: RerunOrder, step: int) -> None:
    played = Played(order, step)
    assert not played.rerun.is_due(12)
    assert played.rerun.is_offered


@pytest.mark.parametrize("is_offered", [True, False])
def test_after_the_orders_rerun_a_later_fault_may_be_run_again_elsewhere_too(*, is_offered: bool) -> None:
    played = Played(RerunOrder(12, 10, (0,), 1, is_offered))
    assert played.rerun.is_due(12)
    played.rerun.end_without(12)
    (report,) = played.sent
    assert (report["place"], report["num_ranks"], report["from_step"]) == ("elsewhere", 1, 8)
    assert played.rerun.is_offered is is_offered
    assert not played.rerun.is_due(13)


@pytest.mark.parametrize(("fault", "is_decided"), [(DivergedError("diverged", step=11), True), (OF_BUFFERS, False)])
def test_a_fault_of_buffers_alone_does_not_show_a_program_at_fault(
    fault: DivergedError | ReplicaError, *, is_decided: bool
) -> None:
    played = Played(ORDER)
    played.rerun.meet_again(12, fault)
    assert (played.rerun.is_decided, played.rerun.is_repeated, bool(played.sent)) == (is_decided,) * 3


class Hostile(torch.nn.Module):
    """A layer whose weight is the program's own property."""

    @property
    def weight(self) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory")


class Whole(torch.Tensor):
    """A tensor that has no copy in another kind."""

    def float(self) -> torch.Tensor:
        raise NotImplementedError("no float of it")


def test_no_fault_of_a_tensor_ends_a_recovery() -> None:
    """Other ranks wait meanwhile."""
    assert operation_of(Hostile(), "weight") is None
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.ones(2, 2).as_subclass(Whole), requires_grad=False)
    assert operation_of(model, "weight") is None
    assert operation_of(torch.nn.Linear(2, 2), "") is None, "a fault of values names no tensor"


def test_the_size_of_a_value_is_computed_in_parts_without_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.train.reruns.operations._VALUES_AT_ONCE", 8)
    model = torch.nn.Conv2d(2, 7, 3, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(-0.5)
        model.weight[0, 0, 0, 0], model.weight[6, 1, 2, 2] = float("nan"), float("inf")
    found = operation_of(model, "weight")
    assert found == {"kind": "conv2d", "shape": [7, 2, 3, 3], "dtype": "bfloat16", "magnitude": 0.5 * 124 / 126}
