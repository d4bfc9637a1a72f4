"""At which interval an attempt saves, in one sentence for people."""

from collections.abc import Mapping
from typing import Any, Final

_BOUNDS: Final[Mapping[str, str]] = {
    "none": "which costs the least",
    "min": "the least that the policy allows",
    "max": "the most that the policy allows",
    "save": "as long as one takes to be saved and read back",
}


def interval_in_words(told: Mapping[str, Any]) -> str:
    """``told``: the fields of ``wire.training.CheckpointInterval``."""
    every = f"a checkpoint every {told['interval_s']:.4g} s"
    if told["step_s"] > 0:
        num_steps = max(round(told["interval_s"] / told["step_s"]), 1)
        every += f", about {num_steps:,} steps" if num_steps > 1 else ", each step"
    return (
        f"{every}: {_BOUNDS[told['bound']]}; each holds training up for {told['stall_s']:.3g} s and takes "
        f"{told['save_s']:.3g} s; {told['num_gpus']:,} GPUs fail once in {_hours(told['mtbf_s'])} h"
    )


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"
