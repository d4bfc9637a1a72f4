"""Progress of this rank: its phase, its step, and a count that grows with each part of a step.

The main thread writes plain attributes, which costs some nanoseconds; the sensor's thread reads them. ``ACTIVITY`` is
the one of this process, since a process is one rank.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

START: Final = "start"
RESTORE: Final = "restore"
FIRST_STEP: Final = "first_step"
STEP: Final = "step"
DATA: Final = "data"
COMPILE: Final = "compile"
EVALUATION: Final = "eval"
SAVE: Final = "save"
END: Final = "end"
DECLARABLE: Final = (DATA, COMPILE, EVALUATION, SAVE, RESTORE, STEP)
"""Phases that a program may declare."""
OF_STEPS: Final = frozenset({FIRST_STEP, STEP, EVALUATION})
"""Phases in which a call of the model to evaluate is an evaluation; in others the declared or own phase counts."""
OF_STATE: Final = frozenset({SAVE, RESTORE})
"""Phases that the stack shows where a program saves or loads by itself."""
_TRAINING: Final = frozenset({STEP, DATA})


class Activity:
    """``ticks`` grows with each part of a step. ``agreements``: of the runtime with the other ranks, with the kind of
    the newest one; ``is_agreeing`` while this rank is in it. ``loop``: code of the function that iterates the steps.
    ``num_pauses``: how often another phase than training was entered. ``num_evaluations``: calls of the model, or of a
    copy of it, to evaluate.
    """

    __slots__ = (
        "_declared",
        "_is_evaluating",
        "_own",
        "agreements",
        "is_agreeing",
        "last_agreement",
        "loop",
        "num_evaluations",
        "num_pauses",
        "step",
        "ticks",
    )

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin again, as a process does that trains twice."""
        self.step = 0
        self.ticks = 0
        self.num_pauses = 0
        self.num_evaluations = 0
        self.agreements = 0
        self.last_agreement = ""
        self.is_agreeing = False
        self.loop: CodeType | None = None
        self._own = START
        self._is_evaluating = False
        self._declared: list[tuple[str, bool]] = []

    def tick(self) -> None:
        """Count a part of a step that is done."""
        self.ticks += 1

    def agreeing(self, kind: str) -> _Agreeing:
        """Count an agreement that this rank enters, and leaves at the end of the block."""
        return _Agreeing(self, kind)

    def note_forward(self, *, is_evaluating: bool) -> None:
        """Note that the model is called: in evaluation mode or without gradients, or to train."""
        self.ticks += 1
        self.num_evaluations += is_evaluating
        self._is_evaluating = is_evaluating

    def move_to(self, phase: str) -> None:
        """Begin a phase of the run's own: start, restore, first step, step or end."""
        self._own = phase
        self._is_evaluating = False
        self.ticks += 1

    def begin_steps(self, step: int) -> None:
        self.step = step
        self.move_to(FIRST_STEP)

    def end_step(self, step: int) -> None:
        """Note the number of steps that are done."""
        self.step = step
        self.move_to(STEP)

    @contextlib.contextmanager
    def within(self, phase: str, *, is_declared: bool = False) -> Iterator[None]:
        """Be in ``phase`` meanwhile; the inner one of two counts."""
        self._declared.append((phase, is_declared))
        self.ticks += 1
        self.num_pauses += phase not in _TRAINING
        try:
            yield
        finally:
            self._declared.pop()
            self.ticks += 1

    def phase(self) -> tuple[str, bool]:
        """Return the phase, and whether the program declared it."""
        entered = self._declared[-1:]
        if entered:
            return entered[0]
        if self._is_evaluating and self._own in OF_STEPS:
            return EVALUATION, False
        return self._own, False


class _Agreeing:
    """Block of one agreement. A class is entered in a third of the time of a generator, and each step has one."""

    __slots__ = ("_activity", "_kind")

    def __init__(self, activity: Activity, kind: str) -> None:
        self._activity, self._kind = activity, kind

    def __enter__(self) -> None:
        activity = self._activity
        activity.last_agreement, activity.is_agreeing = self._kind, True
        activity.agreements += 1
        activity.ticks += 1

    def __exit__(self, *_: object) -> None:
        self._activity.is_agreeing = False
        self._activity.ticks += 1


ACTIVITY: Final = Activity()


@contextlib.contextmanager
def declared(phase: str) -> Iterator[None]:
    """Be in a phase that the program declares. Raises ValueError for one that it cannot declare."""
    if phase not in DECLARABLE:
        raise ValueError(f"phase {phase!r}: must be one of {', '.join(DECLARABLE)}")
    with ACTIVITY.within(phase, is_declared=True):
        yield
