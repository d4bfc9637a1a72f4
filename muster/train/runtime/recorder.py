"""Record of a program's steps, for ``muster train check``: digests of its whole state, before and after each step.

``MUSTER_TRAIN_CHECK`` is a JSON object: ``folder`` for the records, ``steps`` after which the process ends, ``save_at``
the only step that is saved, ``kill_at`` a step before which the last rank of the first attempt kills itself (optional).
Each rank writes a file, ``rank-RRRRR-N.jsonl``, for its Nth attempt. Each line is a moment: ``start`` after the
restore, ``begin`` and ``end`` of a step; ``values`` holds what changed since the line before, null: it
no longer exists.

A value's key is its kind and its name. What the program gave to ``start``: parameter, buffer, optimizer, rate (of each
of its groups), scheduler, extra, rng. Then: attribute (of a module, no registered buffer), gradient, input (of each
call of the model), sample, loss, and the program's variables (``program_state``).
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from muster.train.checkpoint import extras, replicas, state
from muster.train.data.streams import SampleStream
from muster.train.parallel.shards import local_of
from muster.train.runtime import rng
from muster.train.runtime.program_state import NUMBER, variables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

    from muster.train.checkpoint.state import Trained

ENVIRONMENT: Final = "MUSTER_TRAIN_CHECK"
_MOST_SAMPLES_IN_WORDS = 8
_HEX_DIGITS = 16


@dataclass(frozen=True)
class CheckOrder:
    """What a check asks of this process; see the docstring of this file."""

    folder: Path
    steps: int
    save_at: int
    kill_at: int | None

    @classmethod
    def of(cls, text: str) -> CheckOrder | None:
        """Read the order; None if there is none. Raises ValueError that names the variable if it cannot be read."""
        if not text:
            return None
        try:
            document = json.loads(text)
            numbers = [document["steps"], document["save_at"], document.get("kill_at") or 0]
            folder = Path(document["folder"])
        except (ValueError, KeyError, TypeError, AttributeError):
            folder, numbers = Path(), [-1]
        if not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(
                f"{ENVIRONMENT}={text!r}: must be a JSON object with folder, steps and save_at, and perhaps kill_at"
            )
        return cls(folder, numbers[0], numbers[1], numbers[2] or None)


class Recorder:
    """Recorder of one rank; without an order it does nothing."""

    def __init__(self, order: CheckOrder | None, trained: Trained, *, rank: int, world_size: int) -> None:
        self._order = order
        self._trained = trained
        self._rank, self._world_size = rank, world_size
        self._known: frozenset[int] = frozenset()
        self._inputs: list[str] = []
        self._before: dict[str, str] = {}
        self._began_at = 0
        self._path: Path | None = None

    def start(self, step: int, model: torch.nn.Module) -> None:
        """Record the state after the restore. ``model``: the module that the program calls."""
        if self._order is None:
            return
        self._began_at = step
        self._known = _known(self._trained, model)
        model.register_forward_pre_hook(self._note_inputs, with_kwargs=True)
        self._order.folder.mkdir(parents=True, exist_ok=True)
        names = (self._order.folder / f"rank-{self._rank:05d}-{number}.jsonl" for number in count(1))
        self._path = next(path for path in names if not path.exists())
        self._write("start", step, self._tracked(), world_size=self._world_size)

    def due(self, step: int, *, is_due: bool) -> bool:
        """Return whether this step is saved. ``is_due``: what holds without a check."""
        return is_due if self._order is None else step == self._order.save_at

    def is_over(self, step: int) -> bool:
        """Return whether the check needs no further step."""
        return self._order is not None and step >= self._order.steps

    def begin(self, step: int, frame: FrameType | None) -> None:
        """Record the state before a step, and kill this process if the check asks for that. ``frame``: the loop's."""
        if self._order is None:
            return
        values = self._tracked()
        states = rng.rng_state()
        for name, parameter in self._trained.model.named_parameters():
            if parameter.grad is not None:
                values[f"gradient {name}"] = _digest(parameter.grad)
        for each in variables(frame, self._known):
            kind = each.kind if each.kind == NUMBER else f"variable {each.kind}"
            values[f"{kind} {each.name}"] = each.state if each.kind == NUMBER else _digest(each.state)
        rng.set_random_state(states)
        self._inputs = []
        self._write("begin", step, values)
        is_last = self._rank == self._world_size - 1
        if step == self._order.kill_at and self._began_at == 0 and is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    def end(self, step: int, loss: float | None, samples: Callable[[], Mapping[str, list[int]]]) -> None:
        """Record the state after a step, with the samples that it drew, before it is saved."""
        if self._order is None:
            return
        values = self._tracked()
        values |= {f"input {number}": digest for number, digest in enumerate(self._inputs)}
        values |= {f"sample {name}".strip(): _samples_in_words(each) for name, each in samples().items() if each}
        if loss is not None:
            values["loss"] = repr(loss)
        self._write("end", step, values)

    def _write(self, moment: str, step: int, values: dict[str, str], **about: int) -> None:
        changed: dict[str, str | None] = {key: value for key, value in values.items() if self._before.get(key) != value}
        changed |= dict.fromkeys(self._before.keys() - values.keys())
        self._before = values
        line = json.dumps({"at": moment, "step": step, **about, "values": changed})
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")

    def _note_inputs(self, _module: object, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._inputs.append(_digest([arguments, sorted(named.items())]))

    def _tracked(self) -> dict[str, str]:
        """Return what ``start`` knows, and the attributes of modules. No random number is used up by it."""
        trained, states = self._trained, rng.rng_state()
        values = {f"rng {name}": _digest(value) for name, value in states.items()}
        values |= {f"parameter {name}": _digest(each) for name, each in trained.model.named_parameters()}
        values |= {f"buffer {name}": _digest(each) for name, each in trained.model.named_buffers()}
        values |= dict(_attributes(trained.model))
        if trained.optimizer is not None:
            values |= dict(_of_optimizer(trained))
        for name, stateful in extras.named(trained.scheduler, trained.extras).items():
            values[name] = _digest(stateful.state_dict())
        rng.set_random_state(states)
        return values


def _known(trained: Trained, model: torch.nn.Module) -> frozenset[int]:
    """Return the ids of what is tracked by name: the program's variables for it are no further state."""
    own = [*trained.model.modules(), *trained.model.parameters(), *trained.model.buffers(), model]
    own += [each for each in (trained.optimizer, trained.scheduler, *trained.extras.values()) if each is not None]
    for each in list(own):
        if isinstance(each, torch.nn.Module):
            own += [*each.modules(), *each.parameters(), *each.buffers()]
    return frozenset(map(id, own))


def _attributes(model: torch.nn.Module) -> Iterator[tuple[str, str]]:
    """Yield tensors and numbers that a module has as plain attributes, which no ``state_dict`` holds."""
    for place, module in model.named_modules():
        for name, value in vars(module).items():
            if name.startswith("_") or name == "training":
                continue
            if isinstance(value, torch.Tensor) or type(value) in {int, float}:
                whole = f"{place}.{name}" if place else name
                yield f"attribute {whole}", _digest(value)


def _of_optimizer(trained: Trained) -> Iterator[tuple[str, str]]:
    optimizer = trained.optimizer
    if optimizer is None:
        return
    names = state.parameter_names(trained)
    parameters = dict(enumerate(each for group in optimizer.param_groups for each in group["params"]))
    for number, parameter in parameters.items():
        if held := optimizer.state.get(parameter):
            yield f"optimizer {names.get(number, f'parameter {number}')}", _digest(dict(held))
    for number, group in enumerate(optimizer.param_groups):
        options = {name: value for name, value in group.items() if name != "params"}
        yield f"rate of group {number}", _digest(options)


def _samples_in_words(samples: list[int]) -> str:
    """Return the first samples as they are, and a digest of all if there are more."""
    words = " ".join(map(str, samples[:_MOST_SAMPLES_IN_WORDS]))
    if len(samples) <= _MOST_SAMPLES_IN_WORDS:
        return words
    whole = hashlib.blake2b(repr(samples).encode(), digest_size=8).hexdigest()
    return f"{words} … ({len(samples):,}, {whole})"


def _digest(value: Any) -> str:
    found = replicas.digests_of({(-1, ""): _local(value)})
    return f"{found[-1, '']:0{_HEX_DIGITS}x}"


def _local(value: Any) -> Any:
    """Return the value with this rank's own pieces in place of sharded tensors, and streams left out."""
    if isinstance(value, torch.Tensor):
        return local_of(value)
    if isinstance(value, dict):
        return {key: _local(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_local(inner) for inner in value]
    return None if isinstance(value, SampleStream) else value


def frame_of_loop() -> FrameType | None:
    """Return the frame that asks the generator that calls this for its next value."""
    return sys._getframe(2)  # noqa: SLF001  # there is no other way to a caller's variables
