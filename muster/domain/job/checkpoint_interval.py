"""The interval at which an attempt saves, in one sentence for people."""

import math
from collections.abc import Mapping
from typing import Any, Final

_BOUND_TEXTS: Final[Mapping[str, str]] = {
    "none": "which costs the least",
    "min": "the least that the policy allows",
    "max": "the most that the policy allows",
    "save": "as long as one takes to be saved and read back",
}


_MOST_STEPS: Final = 10**12
"""Beyond it the length of a step is no measurement: a rank may say what it likes."""


def interval_in_words(interval: Mapping[str, Any]) -> str:
    """Return the interval as one sentence.

    ``interval`` has the fields of ``wire.training.CheckpointInterval``.
    """
    every = f"a checkpoint every {interval['interval_s']:.4g} s"
    num_steps = interval["interval_s"] / interval["step_s"] if interval["step_s"] > 0 else math.inf
    if num_steps <= _MOST_STEPS:
        num_steps = max(round(num_steps), 1)
        every += f", about {num_steps:,} steps" if num_steps > 1 else ", each step"
    return (
        f"{every}: {_BOUND_TEXTS.get(interval['bound'], interval['bound'])}; "
        f"each stalls training for {interval['stall_s']:.3g} s and takes {interval['save_s']:.3g} s; "
        f"{interval['num_gpus']:,} GPUs fail once in {_hours(interval['mtbf_s'])} h"
    )


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
