"""The result of a rank's work up to a step, as one number for its state and one for each loss on the way.

A loss is computed before gradients are averaged, so it is this rank's own work. Gradients and parameters carry the
faults of all ranks. Two runs of the same steps are compared so::

    step        21  22  23  24     state after step 24
    first run   a   b   c'  d'     s'                      from step 23 on it differs
    second run  a   b   c   d      s
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from muster.train.checkpoint import extras
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.shards import local_of
from muster.train.reruns.rerun_judge import Compared
from muster.train.values import digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from muster.train.checkpoint.state import Trained

_STEPS_KEPT = 4096
BEFORE = 4
"""Losses from before the first step that is not to be trusted, each of which is sent."""
_EACH = 28
_SPREAD = 16
MOST_LOSSES = BEFORE + _EACH + _SPREAD
_UNIT_BITS = 48


@dataclass(frozen=True)
class Result:
    """The result of one rank. ``losses``: by step; ``state``: of all its tensors after the last step.

    ``settings``: of the optimizer's numbers and of the program's extras; empty: they cannot be read.
    """

    state: int
    losses: Mapping[int, int]
    settings: str = ""

    def first_difference(self, other: Result) -> int:
        """Return the first step with another loss, or with a loss in one of the two alone; 0: there is none."""
        steps = self.losses.keys() | other.losses.keys()
        return min((step for step in steps if self.losses.get(step) != other.losses.get(step)), default=0)

    def document(self, first_bad: int, last: int) -> list[object]:
        """Return the result for a message, bounded: single losses before ``first_bad``, and one digest of all losses
        from there up to each of the ``marks``.
        """
        sent = {step: loss for step, loss in self.losses.items() if first_bad - BEFORE <= step < first_bad}
        suspect = sorted(step for step in self.losses if step >= first_bad)
        marks = [mark for mark in marks_of(first_bad, last) if suspect and suspect[0] <= mark <= suspect[-1]]
        digest, taken = _new_digest(), 0
        for mark in marks:
            while taken < len(suspect) and suspect[taken] <= mark:
                digest.update(struct.pack("<QQ", suspect[taken], self.losses[suspect[taken]]))
                taken += 1
            sent[mark] = int.from_bytes(digest.digest(), "little")
        return [f"{self.state:x}", [[step, f"{loss:x}"] for step, loss in sorted(sent.items())]]


def marks_of(first_bad: int, last: int) -> list[int]:
    """Return the steps up to which losses are sent: each of the first ones, and some spread up to the last one."""
    each_until = min(first_bad + _EACH - 1, last)
    rest = last - each_until
    spread = {each_until + -(-rest * number // _SPREAD) for number in range(1, _SPREAD + 1)} if rest else set()
    return [*range(first_bad, each_until + 1), *sorted(spread)]


class Journal:
    """The losses of one rank by step. A step that is done again replaces its entry and the later ones."""

    def __init__(self) -> None:
        self._losses: deque[tuple[int, float]] = deque(maxlen=_STEPS_KEPT)

    def note(self, step: int, loss: float | None) -> None:
        """Record the loss of a step, finite or not; None: the program reported none."""
        if loss is not None:
            self._losses.append((step, loss))

    def forget(self, step: int) -> None:
        """Forget the steps after ``step``, whose state is restored."""
        self._losses = deque((each for each in self._losses if each[0] <= step), maxlen=_STEPS_KEPT)

    def between(self, first: int, last: int) -> dict[int, int]:
        """Return the losses of the steps after ``first`` up to ``last``, as numbers."""
        return {step: loss_digest(loss) for step, loss in self._losses if first < step <= last}


def compare(first: Result, second: Result, first_bad: int, end: int, *, is_at_end: bool) -> Compared:
    """Compare a rank's two results after the second run's step ``end``.

    Before the end of the first run no state of it is known, so its losses decide, and without losses nothing does.
    """
    if not is_at_end:
        first = replace(first, losses={step: loss for step, loss in first.losses.items() if step <= end})
    step = first.first_difference(second)
    is_same = not step and (first.state == second.state if is_at_end else bool(second.losses))
    return Compared(
        is_same=is_same,
        first_step=step,
        num_before=sum(step < first_bad for step in first.losses.keys() & second.losses.keys()),
        has_losses=bool(second.losses),
        is_repeatable=not is_at_end or (bool(first.settings) and first.settings == second.settings),
    )


def loss_digest(loss: float) -> int:
    """Return a number for the bits of a loss; one for all values that are no number."""
    bits = struct.pack("<d", loss) if loss == loss else b"nan"  # noqa: PLR0124  # a NaN's own bits have no meaning
    return int.from_bytes(_new_digest(bits).digest(), "little")


def _new_digest(begin: bytes = b"") -> hashlib.blake2b:
    return hashlib.blake2b(begin, digest_size=_UNIT_BITS // 8)


def state_digest(trained: Trained) -> int:
    """Return the digest of this rank's parameters and of what its optimizer holds.

    Buffers and frozen parameters are left out: a program may change one on one rank alone, such as a time.
    """
    named = list(_tensors(trained))
    found = digests.read([digests.begun([values for _, values in named])])
    shares = (digests.share_of(digests.name_digest(name), each) for (name, _), each in zip(named, found, strict=True))
    return sum(shares) & digests.MASK


def settings_digest(trained: Trained) -> str:
    """Return the digest of the optimizer's numbers, such as its rate, and of schedulers and extras.

    Empty if they cannot be read: their methods are the program's.
    """
    groups = [] if trained.optimizer is None else trained.optimizer.param_groups
    try:
        numbers = [{key: value for key, value in group.items() if key != "params"} for group in groups]
        part = extras.part_of(extras.named(trained.scheduler, trained.extras))
        return extras.digest_of([numbers, part[extras.ALIKE]])
    except Exception:  # noqa: BLE001  # a fault of the program's own methods must not end a recovery on one rank
        return ""


def _tensors(trained: Trained) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in trained.model.named_parameters():
        if value.requires_grad:
            yield from _plain(name, value)
    optimizer = trained.optimizer
    if optimizer is None:
        return
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for number, parameter in enumerate(parameters):
        values = optimizer.state.get(parameter)
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, torch.Tensor) and parameter.requires_grad:
                yield from _plain(f"{number} {key}", value)


def _plain(name: str, value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    values = local_of(value)
    if is_plain(values) and not values.is_meta:
        yield name, values
