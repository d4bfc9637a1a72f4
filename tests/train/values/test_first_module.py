"""The first module with a value that is not finite: before the optimizer spreads it, after it, and by hooks."""

import copy
import dataclasses
import math
import pickle

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from muster.train.values.first_module import FirstModule  # it imports torch


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4) for _ in range(3))
        self.register_buffer("mask", torch.full((4,), -math.inf))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.third(self.second(self.first(values)).tanh())
        return found


class Known:
    def __init__(self) -> None:
        self.model = Three()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.search = FirstModule(self.model, self.optimizer)

    def step(self, values: torch.Tensor, number: int = 1) -> str:
        self.search.begin(number)
        self.optimizer.zero_grad()
        torch.autograd.backward(self.model(values).square().mean())
        self.optimizer.step()
        self.search.examine_after()
        return self.search.words


def spoil(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter.view(-1)[0] = math.nan


def test_a_parameter_is_named_before_the_optimizer_spreads_its_value() -> None:
    known = Known()
    assert known.step(torch.randn(2, 4)) == "", "a mask of infinities is exempt"
    spoil(known.model.second.bias)
    assert known.step(torch.randn(2, 4)) == "first in second.bias, which holds nan"
    assert not any(bool(torch.isfinite(each).all()) for each in known.model.parameters()), "after it, none is the first"


def test_a_gradient_is_named_if_others_are_finite() -> None:
    known = Known()
    known.search.begin(1)
    torch.autograd.backward(known.model(torch.randn(2, 4)).square().mean())
    assert known.model.third.weight.grad is not None
    known.model.third.weight.grad[1, 1] = math.inf
    known.search.examine()
    assert known.search.words == "in the gradient of third.weight"


def test_hooks_name_the_module_or_the_input_until_the_faulty_step_is_passed() -> None:
    known = Known()
    known.search.arm(5)
    known.model.second.register_forward_pre_hook(lambda _module, inputs: (inputs[0] * math.nan,))
    known.optimizer.register_step_pre_hook(lambda *_: known.optimizer.zero_grad())
    assert known.step(torch.randn(2, 4), 4) == "first in the output of second, which holds nan"
    assert known.step(torch.full((2, 4), math.nan), 5) == "first in the input of the model"
    assert known.step(torch.randn(2, 4), 6) == "", "no hook is left, and all gradients are not finite"


def test_the_output_of_a_module_may_be_a_dataclass() -> None:
    @dataclasses.dataclass
    class Output:
        loss: torch.Tensor | None
        hidden: list[torch.Tensor]

    known = Known()
    known.search.note_output("second", Output(None, [torch.zeros(2), torch.tensor([1.0, -math.inf])]))
    assert known.search.words == "first in the output of second, which holds -inf"


def test_copies_of_a_model_and_of_an_optimizer_carry_no_search() -> None:
    known = Known()
    known.search.arm(5)
    for model in (copy.deepcopy(known.model), pickle.loads(pickle.dumps(known.model))):  # noqa: S301  # our own bytes
        spoil(model.first.weight)
        model(torch.randn(2, 4))
    assert known.search.words == ""
    assert copy.deepcopy(known.optimizer).state_dict().keys() == known.optimizer.state_dict().keys()
