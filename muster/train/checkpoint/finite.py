"""Values of a rank's part of a checkpoint that are not finite.

They are looked for in the copy that is written, by the thread that writes it. The memory is read again, in a tenth of
the time that the hash takes (9 GB/s against 0.9 on one core). Parameters, the optimizer's state, buffers and extras
that are modules count. A buffer or a frozen parameter that holds such values as the program starts, such as a mask, is
exempt. The states of other extras are the program's own affair.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import extras, state
from muster.train.checkpoint.extra_pieces import PIECES, tensors_in
from muster.train.checkpoint.own_tensors import OWN_TENSORS
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.shards import local_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from muster.train.checkpoint.extra_pieces import Place
    from muster.train.checkpoint.state import Trained


class FiniteState:
    """Check of the parts of one rank. Make it before the state is restored, while nothing has diverged."""

    def __init__(self, trained: Trained) -> None:
        self._parameters = state.parameter_names(trained)
        modules = {
            name: module
            for name, module in extras.named(trained.scheduler, trained.extras).items()
            if isinstance(module, torch.nn.Module)
        }
        self._modules = set(modules)
        self._exempt = set(_exempt_names("", trained.model))
        for name, module in modules.items():
            self._exempt.update(_exempt_names(f"{name}, ", module))

    def fault_of(self, part: Mapping[str, Any]) -> str:
        """Return which tensor holds a value that is not finite, and which value; empty if there is none."""
        for name, values in self._tensors_of(part):
            if name not in self._exempt and (found := worst_of(values)) is not None:
                return f"{name} holds {found}"
        return ""

    def _tensors_of(self, part: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        for room in (part["model"], part["own"]):
            yield from ((name, value) for name, value in room.items() if isinstance(value, torch.Tensor))
        yield from ((name, piece["values"]) for name, piece in part["model_pieces"].items())
        optimizer = part.get("optimizer", {"state": {}, "pieces": {}})
        for key, room in optimizer["state"].items():
            for place, value in tensors_in(room):
                yield self._name_of(key, place), value
        for key, pieces in optimizer["pieces"].items():
            yield from ((self._name_of(key, (name,)), piece["values"]) for name, piece in pieces.items())
        for place, value in tensors_in(part.get(OWN_TENSORS, {})):
            yield (str(place[-1]) if place[0] == "model" else self._name_of(place[2], place[3:])), value
        for states in (part.get(extras.ALIKE, {}), part.get(extras.OWN, {})):
            for name in self._modules & states.keys():
                yield from ((_of_extra(name, place), value) for place, value in tensors_in(states[name]))
        for name in self._modules & part.get(PIECES, {}).keys():
            yield from ((_of_extra(name, place), piece["values"]) for place, piece in part[PIECES][name].items())

    def _name_of(self, key: int, place: Place) -> str:
        return f"the optimizer's {' '.join(map(str, place))} of {self._parameters.get(key, f'parameter {key}')}"


def _of_extra(name: str, place: Place) -> str:
    return f"{name}, {' '.join(map(str, place))}"


def _exempt_names(prefix: str, module: torch.nn.Module) -> Iterator[str]:
    trained = {name for name, each in module.named_parameters(remove_duplicate=False) if each.requires_grad}
    for name, value in module.state_dict().items():
        if name not in trained and isinstance(value, torch.Tensor) and worst_of(local_of(value)) is not None:
            yield prefix + name


def worst_of(values: torch.Tensor) -> float | None:
    """Return NaN or an infinity if the values hold any, else None. Kinds of tensors that torch cannot compare pass."""
    if not (values.is_floating_point() or values.is_complex()) or not is_plain(values) or values.is_meta:
        return None
    with torch.no_grad():
        values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
        values = values.float() if values.element_size() == 1 else values
        if values.numel() == 0:
            return None
        for bound in (float(each) for each in torch.aminmax(values)):
            if not math.isfinite(bound):
                return bound
    return None
