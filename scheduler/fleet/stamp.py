"""A number for the set of free GPUs, by which values that were computed for one set are found again.

Each GPU has a random number of 64 bits, the same in each process. The stamp is the exclusive or of the numbers of all
GPUs that changed (Zobrist, "A new hashing method with application for game playing", 1970): the order of changes does
not matter, and a change that is undone restores the stamp. Two sets of one cycle have one stamp by chance with a
probability of 2^-64.
"""

import functools

import numpy as np
import numpy.typing as npt

from scheduler.fleet.cell_counts import Ints

Codes = npt.NDArray[np.uint64]


class Stamp:
    """The stamp of one state and of its layouts. ``value``: 0 for the GPUs that were free at first."""

    __slots__ = ("_codes", "value")

    def __init__(self, num_gpus: int) -> None:
        self._codes, self.value = _codes(num_gpus), 0

    def changes(self, gpus: Ints) -> None:
        """Record that these GPUs, distinct, were taken or given back."""
        self.value ^= int(np.bitwise_xor.reduce(self._codes[gpus]))


@functools.lru_cache(maxsize=4)
def _codes(num_gpus: int) -> Codes:
    """Return the GPUs' numbers, which are shared and read alone."""
    codes = np.random.Generator(np.random.PCG64(0)).integers(1, 2**64, num_gpus, dtype=np.uint64, endpoint=False)
    codes.flags.writeable = False
    return codes
