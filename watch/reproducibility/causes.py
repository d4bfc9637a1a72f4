"""Causes for which a resumed run differs, and what a program has to change."""

from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """Why a resumed run differs."""

    NONDETERMINISTIC = "nondeterministic"
    OTHER_GPU = "other_gpu"
    REPLICA = "replica"
    OPTIMIZER = "optimizer"
    SCHEDULER = "scheduler"
    SCALER = "scaler"
    BUFFER = "buffer"
    COPY = "copy"
    STATE = "state"
    SAMPLES = "samples"
    RANDOM_NUMBERS = "random_numbers"
    LEARNING_RATE = "learning_rate"
    ACCUMULATION = "accumulation"
    UNKNOWN = "unknown"


STATES: Final = (
    (
        "variable optimizer",
        Cause.OPTIMIZER,
        "the optimizer `{name}` was not saved: after the resume it begins again, without its moments",
        "Give it to train.start(model, {name}), and make no new optimizer after train.start",
    ),
    (
        "variable scheduler",
        Cause.SCHEDULER,
        "the scheduler `{name}` was not saved: after the resume it begins again at its first step",
        "Give it to train.start(model, optimizer, {name}), made before that call",
    ),
    (
        "variable scaler",
        Cause.SCALER,
        "the gradient scaler `{name}` was not saved: after the resume its scale begins again",
        'Give it to train.start(…, extras={{"scaler": {name}}})',
    ),
    (
        "variable module",
        Cause.COPY,
        "the module `{name}` was not saved: after the resume it begins again, such as a moving average of the weights",
        'Give it to train.start(…, extras={{"{name}": {name}}})',
    ),
    (
        "variable stateful",
        Cause.STATE,
        "`{name}` has a state_dict that was not saved: after the resume it begins again",
        'Give it to train.start(…, extras={{"{name}": {name}}})',
    ),
    (
        "variable tensor",
        Cause.STATE,
        "the tensors of `{name}` were not saved: after the resume they begin again",
        (
            'Give them to train.start(…, extras={{"{name}": …}}) by an object with state_dict and load_state_dict, '
            "such as a torch.nn.Module with buffers; or, if they decide nothing, add --ignore {name}"
        ),
    ),
    (
        "variable generator",
        Cause.RANDOM_NUMBERS,
        "the generator `{name}` was not saved: after the resume its random numbers begin again",
        (
            'Give it to train.start(…, extras={{"{name}": …}}) by an object whose state_dict holds its state, or draw '
            "from the generators of random, numpy.random or torch, which are saved for each rank"
        ),
    ),
    (
        "attribute",
        Cause.BUFFER,
        "`{name}` is an attribute of a module and no registered buffer: no checkpoint holds it",
        'Make it a buffer: self.register_buffer("{name}", …)',
    ),
    (
        "buffer",
        Cause.BUFFER,
        "the buffer `{name}` was not restored: a buffer with persistent=False is in no checkpoint",
        "Register it without persistent=False, and do not change it between train.start and the first step",
    ),
    (
        "optimizer",
        Cause.OPTIMIZER,
        "the optimizer's state of `{name}` differs",
        "Give train.start the optimizer that the loop steps, and do not change its state after train.start",
    ),
    (
        "scheduler",
        Cause.SCHEDULER,
        "the scheduler's state differs",
        "Make the scheduler before train.start, and do not step it between train.start and the first step",
    ),
    (
        "extra",
        Cause.STATE,
        "the extra `{name}` differs from what was saved",
        "Let its load_state_dict restore all that its state_dict returns",
    ),
)
"""By kind of what differs before a step, the cause, in the order in which a cause comes before its effects."""
