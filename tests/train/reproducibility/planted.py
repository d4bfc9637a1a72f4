"""Planted faults of a resume: for each its cause, what differs first, and words of the explanation. Clean kinds too."""

from pathlib import Path

from watch.reproducibility.causes import Cause

PROGRAM = Path(__file__).with_name("faulty_program.py")
FAULTS = {
    "scheduler": (Cause.SCHEDULER, "variable scheduler main.scheduler", "the scheduler `main.scheduler` was not saved"),
    "python": (Cause.RANDOM_NUMBERS, "rng python", ""),
    "sampler": (Cause.SAMPLES, "input 0", "it got the data of step 1, as if its sampler began again"),
    "optimizer": (Cause.OPTIMIZER, "variable optimizer main.optimizer", ""),
    "buffer": (Cause.BUFFER, "attribute 0.mean", ""),
    "average": (Cause.COPY, "variable module main.average", ""),
    "scaler": (Cause.SCALER, "variable scaler main.scaler", ""),
    "order": (Cause.SAMPLES, "rng torch", ""),
    "time": (Cause.NONDETERMINISTIC, "rng torch", ""),
    "boundary": (Cause.ACCUMULATION, "parameter 1.bias", ""),
    "shared": (Cause.RANDOM_NUMBERS, "rng torch", "rank 1 has another rank's random numbers"),
    "counter": (Cause.LEARNING_RATE, "rate of group 0", "`main.turn` is 0 and was 5"),
    "numpy": (Cause.RANDOM_NUMBERS, "rng numpy", ""),
    "volatile": (Cause.BUFFER, "buffer 0.mean", ""),
    "generator": (Cause.RANDOM_NUMBERS, "variable generator main.noise", ""),
}
CLEAN_PROGRAM = Path(__file__).with_name("clean_program.py")
CLEAN = {"ahead": 1, "workers": 2, "fsdp2": 2, "amp": 1, "accumulation": 2, "epochs": 1}
"""Kinds of programs that resume exactly, with their number of ranks."""
