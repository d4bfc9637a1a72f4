"""The switch of ``watch_cost``: two runs of one process that step in turn, one with the watch and one without.

``take_out`` takes out of a run all that ``muster.train`` does for the watch in a step:

| part | how it is off |
|---|---|
| hooks that time a step's parts, own compute, readings of the host, the report of the pace | ``is_timed=False`` |
| ticks, and the count of agreements | what calls them does nothing |
| the finite check and its hooks, spikes, skipped steps, the check of copies | ``ValueWatch`` does nothing |
| the journal of losses, and the steps that a rollback notes | ``Recovery`` notes nothing |
| messages to the supervisor | none is sent: that of each step too, though it is not for the watch alone |

The measurement of waits and of garbage collection is the process's, so ``paused`` stops it while the other run steps.
The thread that reports progress has a CPU clock of its own. What stays is the training itself: the model under DDP, the
average of gradients, and the ranks' agreement of each step.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Any, Final

import torch

from muster.train.report.waits import WAITS
from muster.train.runtime.run import Run

_OF_VALUES: Final = ("start", "begin", "note_loss", "note_grad_norm", "end", "agree", "before_save")
_NO_BLOCK: Final = contextlib.nullcontext()


def _nothing(*_words: object, **_named: object) -> None:
    """Do nothing, in place of a method of the watch."""


def _no_figures(*_words: object) -> list[int]:
    return []


def _no_block(*_words: object, **_named: object) -> contextlib.AbstractContextManager[None]:
    return _NO_BLOCK


def take_out(run: Any, optimizer: torch.optim.Optimizer) -> None:
    """Take the watch out of a run that was started with ``is_timed=False``, before its first step.

    Raises RuntimeError if the model has hooks: then a part of the watch is not known here.
    """
    for name in _OF_VALUES:
        setattr(run._values, name, _nothing)  # noqa: SLF001  # the product has no such switch
    run._values.figures = _no_figures  # noqa: SLF001
    run._recovery.note_step = run._recovery.end_step = _nothing  # noqa: SLF001
    run._load.note = run._load.end = _nothing  # noqa: SLF001
    run._channel.send = _nothing  # noqa: SLF001
    run._pace._turn = _nothing  # noqa: SLF001
    run._pace.aside = run._pace.exchanging = _no_block  # noqa: SLF001
    run._ranks._counted = _no_block  # noqa: SLF001
    for hooks in (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks):  # noqa: SLF001
        hooks.clear()
    if run.model._forward_hooks or run.model._forward_pre_hooks:  # noqa: SLF001
        raise RuntimeError("a run without the watch has hooks of it")


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Measure no waits and no garbage collection of this process in the block."""
    device, WAITS._device = WAITS._device, None  # noqa: SLF001  # ``leave`` without the run's end
    callbacks = gc.callbacks[:]
    gc.callbacks.clear()
    try:
        yield
    finally:
        WAITS._device = device  # noqa: SLF001
        gc.callbacks[:] = callbacks


def is_intact(run: Run) -> bool:
    """Return whether a run with the watch has all of its hooks: another run in the process could have taken them."""
    hooked = (run.model._forward_hooks, run.model._forward_pre_hooks)  # noqa: SLF001
    return all(hooked) and WAITS._device is not None  # noqa: SLF001
