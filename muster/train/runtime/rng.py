"""A rank's random numbers: Python's, torch's, its GPU's and numpy's. Each rank has its own, and gets its own back.

To save one rank's for all under one name restores it everywhere and is not noticed, since nothing fails: the ranks go
on with the same dropout. So what is saved is compared with what the rank has, its digest stands in the manifest, and
what is loaded is compared with that.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from typing import Any

import torch

from muster.train.parallel.shards import CoverageError


def random_state() -> dict[str, Any]:
    """Python's, torch's, this rank's GPU's, and numpy's where the program uses it."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(numbers), gauss], "torch": torch.get_rng_state()}
    if _uses_gpu():  # asking for the other GPUs' would open each of them
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return state


def digest_of(state: dict[str, Any]) -> str:
    """SHA-256 of what ``random_state`` gave, here or after it was saved and loaded."""
    plain = {name: value.cpu().tolist() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def require_own(state: dict[str, Any], sha256: str | None, rank: int) -> None:
    """``sha256`` None: nobody has said what it is to be, as in checkpoints of before.

    Raises:
        CoverageError: ``state`` is not the rank's.
    """
    if sha256 is not None and digest_of(state) != sha256:
        raise CoverageError(f"the part of rank {rank} holds random numbers that are not its own")


def set_random_state(state: dict[str, Any]) -> None:
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, position, has_gauss, cached = state["numpy"]
        numpy.random.set_state((name, numpy.array(keys, dtype="uint32"), position, has_gauss, cached))


def policy(num_saved: int, num_ranks: int) -> str:
    """How ``num_ranks`` come by their random numbers where ``num_saved`` had saved theirs; 0: training begins anew.

    ``seeded``: by the program's seed and the rank. ``saved``: each goes on with its own. ``saved_by_more``: so too, and
    those of ranks that are no more are let go of. ``saved_by_fewer``: the first go on with their own, the others are
    seeded by the step and the rank.
    """
    if num_saved == 0:
        return "seeded"
    if num_saved == num_ranks:
        return "saved"
    return "saved_by_more" if num_saved > num_ranks else "saved_by_fewer"


def _uses_gpu() -> bool:
    is_initialized: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's own gap
    return is_initialized


def seed_rank(seed: int, rank: int) -> None:
    """Each rank its own numbers, the same in every run."""
    random.seed(seed * 1_000_003 + rank)
    torch.manual_seed(seed * 1_000_003 + rank)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((seed * 1_000_003 + rank) % 2**32)
