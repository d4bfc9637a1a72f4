"""A rank's random numbers: Python's, torch's, its GPU's and numpy's. Each rank has its own, and gets its own back.

If one rank's state is saved for all under one name, it is restored everywhere. Nothing fails, so nothing shows that all
ranks continue with the same dropout. So the saved state is compared with the rank's own, its digest is stored in the
manifest, and the loaded state is compared with that digest.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from typing import Any

import torch

from muster.train.parallel.shards import CoverageError


def rng_state() -> dict[str, Any]:
    """Return the states of the generators of Python, torch and this rank's GPU, and of numpy if the program uses it."""
    version, numbers, gauss = random.getstate()
    state: dict[str, Any] = {"python": [version, list(numbers), gauss], "torch": torch.get_rng_state()}
    if _uses_gpu():  # a call for all GPUs would open each of them
        state["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        state["numpy"] = [str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)]
    return state


def digest_of(state: dict[str, Any]) -> str:
    """Return the SHA-256 of a ``rng_state``, the same before and after it was saved and loaded."""
    plain = {name: value.cpu().tolist() if isinstance(value, torch.Tensor) else value for name, value in state.items()}
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def require_own(state: dict[str, Any], sha256: str | None, rank: int) -> None:
    """Require that ``state`` has the digest ``sha256``; None: no digest was stored, as in old checkpoints.

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
    """Return how ``num_ranks`` ranks get their random numbers if ``num_saved`` ranks saved theirs; 0: training starts
    fresh.

    ``seeded``: by the program's seed and the rank. ``saved``: each continues with its own. ``saved_by_more``: likewise,
    and the states of ranks that no longer exist are dropped. ``saved_by_fewer``: the first ranks continue with their
    own, the others are seeded by the step and the rank.
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
    """Seed this rank's own random numbers, the same in every run."""
    random.seed(seed * 1_000_003 + rank)
    torch.manual_seed(seed * 1_000_003 + rank)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed((seed * 1_000_003 + rank) % 2**32)
