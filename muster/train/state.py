"""What must be equal for the next step to be the same: model, optimizer, scheduler, each rank's random numbers.

What all ranks have alike (parameters, the optimizer's state) is cut into one part a rank, so that all write at once.
What is each rank's own (random numbers; buffers, such as the running means of a batch norm) is written by each: one
name for all would silently restore one rank's everywhere.
"""

from __future__ import annotations

import io
import pickle
import random
import sys
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from muster.train.disk import HashingFile


_ONLY_PLAIN = "a state_dict holds more than tensors and plain values"


class Stateful(Protocol):
    """What a scheduler is to us."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


class CoverageError(Exception):
    """The parts of a checkpoint do not make up the whole state."""


@dataclass
class Trained:
    """What is saved and restored as one. ``extras``: anything else with a state, such as a gradient scaler."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Stateful | None
    extras: Mapping[str, Stateful]


def part_of(trained: Trained, *, rank: int, world_size: int) -> dict[str, Any]:
    """This rank's part: the tensors are those of training itself, to be written before it goes on.

    Raises:
        CoverageError: there are parameters of which each rank has a piece.
    """
    alike, own = _divided(trained.model)
    part: dict[str, Any] = {"model": _share(alike, rank, world_size), "own": own, "rng": random_state()}
    if trained.optimizer is not None:
        state = trained.optimizer.state_dict()
        part["optimizer"] = {"state": _share(state["state"], rank, world_size)}
        if rank == 0:
            part["optimizer"]["param_groups"] = state["param_groups"]
    if rank == 0:
        part["stateful"] = {name: stateful.state_dict() for name, stateful in _stateful(trained).items()}
    return part


def dump(part: dict[str, Any], file: HashingFile) -> None:
    """Without the checksums of the zip format: the SHA-256 of the whole says more.

    Raises:
        CoverageError: it holds something that cannot be written, or not be read again by ``unpacked``.
        OSError: the disk.
    """
    had_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch.save(part, cast("IO[bytes]", file))
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise CoverageError(f"{_ONLY_PLAIN}: {fault}") from fault
    except RuntimeError as fault:  # torch's writer hides a full disk behind a complaint of its own
        raise file.fault or fault from fault
    finally:
        torch.serialization.set_crc32_options(had_checksums)


def require_loadable(path: Path) -> None:
    """Its tensors stay unread: this takes milliseconds. Raises CoverageError."""
    with path.open("rb") as file:
        _load(file, "meta")


def unpacked(part: bytes) -> dict[str, Any]:
    """One part, whose bytes were verified before. Raises CoverageError."""
    return _load(io.BytesIO(part), "cpu")


def _load(buffer: IO[bytes], device: str) -> dict[str, Any]:
    try:
        part: dict[str, Any] = torch.load(buffer, map_location=device, weights_only=True)
    except pickle.UnpicklingError as fault:
        raise CoverageError(f"{_ONLY_PLAIN}: {fault}") from fault
    return part


def _divided(model: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """What all ranks have alike, and what is this rank's own."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    whole = model.state_dict()
    sharded = [name for name, value in whole.items() if hasattr(value, "device_mesh")]
    if sharded:
        raise CoverageError(f"{sharded[0]} is sharded across ranks; only replicated parameters are supported")
    alike = {name: value for name, value in whole.items() if name in names}
    return alike, {name: value for name, value in whole.items() if name not in names}


def _stateful(trained: Trained) -> dict[str, Stateful]:
    scheduler = {} if trained.scheduler is None else {"scheduler": trained.scheduler}
    return {**scheduler, **{f"extra {name}": stateful for name, stateful in trained.extras.items()}}


def _share(whole: Mapping[Any, Any], rank: int, world_size: int) -> dict[Any, Any]:
    """This rank's entries, so that all ranks have about as much to write; the same cut on each rank."""
    loads = [0] * world_size
    chosen = {}
    for key, value in sorted(whole.items(), key=lambda item: -_size_of(item[1])):
        owner = loads.index(min(loads))
        loads[owner] += _size_of(value) + 1
        if owner == rank:
            chosen[key] = value
    return chosen


def _size_of(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(_size_of(inner) for inner in value.values()) if isinstance(value, dict) else 0


def restore(loaded: list[dict[str, Any]], trained: Trained, *, rank: int) -> bool:
    """Put all ranks' parts back. Returns whether this rank found its own random numbers there.

    Raises:
        CoverageError: a parameter is missing or of another shape, or the optimizer's state is not whole.
    """
    is_known = rank < len(loaded)
    own = loaded[rank if is_known else 0]
    weights = {key: value for part in loaded for key, value in part["model"].items()}
    try:
        trained.model.load_state_dict({**weights, **own["own"]}, strict=True)
    except RuntimeError as fault:
        raise CoverageError(f"the model differs from the one that was saved: {fault}") from fault
    if trained.optimizer is not None:
        _restore_optimizer(loaded, trained.optimizer)
    for name, stateful in _stateful(trained).items():
        if name not in loaded[0]["stateful"]:
            raise CoverageError(f"no {name} was saved")
        stateful.load_state_dict(loaded[0]["stateful"][name])
    if is_known:
        set_random_state(own["rng"])
    return is_known


def _restore_optimizer(loaded: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> None:
    if any("optimizer" not in part for part in loaded):
        raise CoverageError("no optimizer was saved")
    state = {key: value for part in loaded for key, value in part["optimizer"]["state"].items()}
    try:
        optimizer.load_state_dict({"state": state, "param_groups": loaded[0]["optimizer"]["param_groups"]})
    except (ValueError, KeyError) as fault:
        raise CoverageError(f"the optimizer differs from the one that was saved: {fault}") from fault


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
