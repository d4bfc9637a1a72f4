"""State that a program has in addition to what it gave to ``train.start``: the variables of its loop.

A resume restores what ``start`` knows. A copy of the weights, a scheduler or a generator that only the program holds
begins again. So a check of a program (``recorder``) reads the variables of the frames that lead to ``run.steps``,
the globals of their files, and the objects of the program's own classes.
"""

from __future__ import annotations

import random
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_MOST_VALUES = 1 << 24
_MOST_ENTRIES = 64
_DEEPEST = 2
_OWN_PACKAGE = str(Path(__file__).resolve().parents[1])
_FOREIGN = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
GENERATOR, NUMBER, TENSOR = "generator", "number", "tensor"


@dataclass(frozen=True)
class Variable:
    """A variable of the program. ``kind``: scheduler, optimizer, scaler, module, stateful, generator, tensor, number.

    ``state``: what decides its further values.
    """

    kind: str
    name: str
    state: Any


def variables(frame: FrameType | None, known: frozenset[int]) -> Iterator[Variable]:
    """Yield the program's variables, from the frame that runs the steps outwards. ``known``: ids of objects to omit."""
    seen = set(known)
    while frame is not None:
        if _is_of_program(frame.f_code.co_filename):
            inside = "" if frame.f_code.co_name == "<module>" else f"{frame.f_code.co_name}."
            yield from _of_names(dict(frame.f_locals), inside, seen, 0)
            if inside:
                yield from _of_names(frame.f_globals, "", seen, 0)
        frame = frame.f_back


def _is_of_program(file: str) -> bool:
    return not (file.startswith("<") or str(Path(file).resolve()).startswith((_OWN_PACKAGE, *_FOREIGN)))


def _of_names(found: dict[str, Any], inside: str, seen: set[int], depth: int) -> Iterator[Variable]:
    for name, value in list(found.items()):
        if name.startswith("__") or isinstance(value, type):
            continue
        if not isinstance(value, (int, float)):
            if id(value) in seen:
                continue
            seen.add(id(value))
        yield from _of(value, f"{inside}{name}", seen, depth)


def _of(value: Any, name: str, seen: set[int], depth: int) -> Iterator[Variable]:
    made = variable(value, name)
    if made is not None:
        yield made
    elif depth < _DEEPEST and _is_of_programs_class(value):
        yield from _of_names(vars(value), f"{name}.", seen, depth + 1)
    elif depth < _DEEPEST and isinstance(value, (dict, list, tuple)) and len(value) <= _MOST_ENTRIES:
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        held = {f"[{key}]": each for key, each in entries if not isinstance(each, (int, float))}
        yield from _of_names(held, name, seen, depth + 1)


def _is_of_programs_class(value: Any) -> bool:
    if not hasattr(value, "__dict__") or callable(value):
        return False
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    is_main = type(value).__module__ in {"__main__", "<run_path>"}
    return is_main or (file is not None and _is_of_program(file))


def variable(value: Any, name: str) -> Variable | None:
    """Return a variable with its state; None if it is of no kind that has one."""
    for kind, state_of in _KINDS:
        state = state_of(value)
        if state is not None:
            return Variable(kind, name, state)
    return None


def _state_of_class(base: Any) -> Any:
    return lambda value: value.state_dict() if isinstance(value, base) else None


def _stateful(value: Any) -> Any:
    is_one = callable(getattr(value, "state_dict", None)) and callable(getattr(value, "load_state_dict", None))
    return value.state_dict() if is_one else None


def _module(value: Any) -> Any:
    if not isinstance(value, torch.nn.Module):
        return None
    return value.state_dict() or {}


def _generator(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, random.Random):
        return list(value.getstate())
    if type(value).__module__.startswith("numpy.random"):
        bits = getattr(value, "bit_generator", None)
        if bits is not None:
            return str(bits.state)
        return str(value.get_state()) if hasattr(value, "get_state") else None
    return None


def _tensors(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if 1 < value.numel() <= _MOST_VALUES else None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc":
        return torch.from_numpy(value.copy()) if value.size <= _MOST_VALUES else None
    entries = list(value.values()) if isinstance(value, dict) else value
    if type(value) in {list, tuple, dict} and entries and all(isinstance(each, torch.Tensor) for each in entries):
        return value if sum(each.numel() for each in entries) <= _MOST_VALUES else None
    return None


def _number(value: Any) -> Any:
    """Return a number, or a tensor of one, as text: a loss or a sum for the log, which decides nothing."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return repr(value.detach().reshape(()).item())
    return repr(value) if type(value) in {int, float} else None


_KINDS: tuple[tuple[str, Any], ...] = (
    ("scheduler", _state_of_class(torch.optim.lr_scheduler.LRScheduler)),
    ("optimizer", _state_of_class(torch.optim.Optimizer)),
    ("scaler", _state_of_class(torch.amp.GradScaler)),
    ("module", _module),
    ("stateful", _stateful),
    (GENERATOR, _generator),
    (TENSOR, _tensors),
    (NUMBER, _number),
)
