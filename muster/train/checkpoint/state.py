"""State that decides the next step: model, optimizer, scheduler, each rank's random numbers.

State that all ranks have alike (parameters, the optimizer's state) is cut into one part a rank, so that all write at
once. Sharded tensors are written piece by piece, each once, and read into any other layout (see ``shards``). Each rank
writes its own state (random numbers; buffers, such as the running means of a batch norm; schedulers and extras that
differ, see ``extras``): one name for all would silently restore one rank's everywhere.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

import torch

from muster.train.checkpoint import extras, replicas
from muster.train.checkpoint.own_tensors import OWN_TENSORS
from muster.train.checkpoint.replicas import DIGESTS
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel import shards
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng as chance

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from muster.train.checkpoint.extras import Stateful
    from muster.train.checkpoint.own_tensors import OwnRule
    from muster.train.checkpoint.sealing import Sink
    from muster.train.parallel.shards import Piece


WAS_SHARDED = "was_sharded"
"""Key in a part from ``exchange``, where all tensors are pieces: whether the model was sharded when it was saved."""
ONLY_PLAIN = "a state_dict holds more than tensors and plain values"


@dataclass
class Trained:
    """Objects that are saved and restored as one. ``extras``: other objects with a state (``checkpoint.extras``).

    ``own``: the tensors that are each rank's own, as the program declares them.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Stateful | None
    extras: Mapping[str, Stateful]
    own: OwnRule | None = None


def part_of(
    trained: Trained, rng: dict[str, Any], *, rank: int, world_size: int, is_compared: bool = False
) -> dict[str, Any]:
    """Return this rank's part with training's own tensors, which must be written before training continues.

    It has all of the rank's schedulers and extras: ``extras.divided`` leaves the ones that the rank is to write.
    ``rng``: the rank's random numbers, taken before: a ``state_dict``, or a background thread, may draw some meanwhile.
    ``is_compared``: with the digests of what all ranks have alike (``replicas``).

    Raises:
        CoverageError: it holds something that cannot be saved.
    """
    kept = _kept(trained)
    part = _tensors_of(kept, trained, rank=rank, world_size=world_size)
    if is_compared:
        part[DIGESTS] = replicas.digests_of(_replicas_of(kept, trained))
    return {**part, "rng": rng, **extras.part_of(extras.named(trained.scheduler, trained.extras))}


def tensors_of(trained: Trained, *, rank: int, world_size: int) -> dict[str, Any]:
    """Return the part's content for model and optimizer. Raises CoverageError."""
    return _tensors_of(_kept(trained), trained, rank=rank, world_size=world_size)


def _tensors_of(kept: _Kept, trained: Trained, *, rank: int, world_size: int) -> dict[str, Any]:
    part: dict[str, Any] = {
        "model": _share(kept.model, rank, world_size),
        "model_pieces": kept.model_pieces,
        "own": kept.buffers,
    }
    optimizer: dict[str, Any] | None = None
    if trained.optimizer is not None:
        part["optimizer"] = {"state": _share(kept.optimizer, rank, world_size), "pieces": kept.optimizer_pieces}
        optimizer = {"param_groups": kept.param_groups}
        if rank == 0:
            part["optimizer"] |= optimizer
    if (rule := trained.own) is not None:
        share = (rule.sharer, rule.num_sharers)
        optimizer = optimizer and {**optimizer, "state": _share(kept.own_optimizer, *share)}
        part[OWN_TENSORS] = rule.frame(_share(kept.own_model, *share), optimizer)
    return part


def _replicas_of(kept: _Kept, trained: Trained) -> dict[tuple[int, str], Any]:
    """Return what all ranks, or all ranks of this rank's place, have whole and alike, for ``replicas.digests_of``.

    One group for each parameter, and one for its state in the optimizer.
    """
    names = parameter_names(trained)
    place = -1 if trained.own is None else trained.own.place
    groups: dict[tuple[int, str], Any] = {}
    for there, model, states in ((-1, kept.model, kept.optimizer), (place, kept.own_model, kept.own_optimizer)):
        groups |= {(there, name): value for name, value in model.items()}
        groups |= {
            (there, f"the optimizer's state of {names.get(key, f'parameter {key}')}"): {"number": key, **value}
            for key, value in states.items()
            if value
        }
    return groups


def parameter_names(trained: Trained) -> dict[int, str]:
    """Return the names of the model's parameters by their number in the optimizer."""
    if trained.optimizer is None:
        return {}
    names = {id(parameter): name for name, parameter in trained.model.named_parameters()}
    in_order = (parameter for group in trained.optimizer.param_groups for parameter in group["params"])
    return {number: names[id(each)] for number, each in enumerate(in_order) if id(each) in names}


@dataclass(frozen=True)
class _Kept:
    """The state of model and optimizer, by how the ranks share it: ``own_`` is what each place has of its own."""

    model: dict[str, Any]
    model_pieces: dict[str, Piece]
    buffers: dict[str, Any]
    own_model: dict[str, Any]
    optimizer: dict[int, dict[str, Any]]
    optimizer_pieces: dict[int, dict[str, Piece]]
    own_optimizer: dict[int, dict[str, Any]]
    param_groups: list[dict[str, Any]]


def _kept(trained: Trained) -> _Kept:
    """Return the state of model and optimizer. Raises CoverageError."""
    rule = trained.own
    alike, buffers = _divided(trained.model)
    plain, pieces = _apart(alike)
    own_model = {name: value for name, value in plain.items() if rule is not None and rule.holds(name)}
    state = {"state": {}, "param_groups": []} if trained.optimizer is None else trained.optimizer.state_dict()
    apart = {key: _apart(values) for key, values in state["state"].items()}
    names = parameter_names(trained)
    own_keys = {key for key in apart if rule is not None and rule.holds(names.get(key, f"parameter {key}"))}
    return _Kept(
        {name: value for name, value in plain.items() if name not in own_model},
        pieces,
        buffers,
        own_model,
        {key: whole for key, (whole, _) in apart.items() if key not in own_keys},
        {key: pieces for key, (_, pieces) in apart.items() if pieces},
        {key: whole for key, (whole, _) in apart.items() if key in own_keys},
        state["param_groups"],
    )


def dump(part: dict[str, Any], file: Sink) -> None:
    """Write a part, without the checksums of the zip format: the SHA-256 of the whole file covers more.

    Raises:
        CoverageError: it holds something that cannot be written, or not be read again by ``unpacked``.
        OSError: the disk.
    """
    had_checksums = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(compute_crc32=False)
    try:
        torch.save(part, cast("IO[bytes]", file))
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise CoverageError(f"{ONLY_PLAIN}: {fault}") from fault
    except RuntimeError as fault:  # torch's writer hides a full disk behind an error of its own
        raise file.fault or fault from fault
    finally:
        torch.serialization.set_crc32_options(had_checksums)


def require_loadable(part: dict[str, Any]) -> None:
    """Raise CoverageError if ``unpacked`` would refuse the part. It is tried with empty tensors, which takes
    milliseconds.
    """
    buffer = io.BytesIO()
    try:
        torch.save(_emptied(part), buffer)
    except (pickle.PicklingError, AttributeError, TypeError) as fault:
        raise CoverageError(f"{ONLY_PLAIN}: {fault}") from fault
    unpacked(buffer.getvalue())


def _emptied(value: Any) -> Any:
    """Return a copy without the values of its tensors; other kinds of containers and of tensors stay whole."""
    if isinstance(value, torch.Tensor) and is_plain(value):
        return torch.empty(0, dtype=value.dtype)
    if type(value) is dict:
        return {key: _emptied(inner) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(_emptied(inner) for inner in value)
    return value


def unpacked(part: bytes | bytearray) -> dict[str, Any]:
    """Unpack one part, whose bytes were verified before. Raises CoverageError."""
    return _load(io.BytesIO(part), "cpu")


def mapped(path: Path) -> dict[str, Any]:
    """Unpack one part from its file, whose bytes were verified before, without its tensors in memory.

    Raises CoverageError.
    """
    return _load(str(path), "cpu", is_mapped=True)


def _load(source: IO[bytes] | str, device: str, *, is_mapped: bool = False) -> dict[str, Any]:
    try:
        part: dict[str, Any] = torch.load(source, map_location=device, weights_only=True, mmap=is_mapped)
    except pickle.UnpicklingError as fault:
        raise CoverageError(f"{ONLY_PLAIN}: {fault}") from fault
    return part


def _divided(model: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries that all ranks have alike, and this rank's own entries."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    whole = model.state_dict()
    alike = {name: value for name, value in whole.items() if name in names or shards.is_sharded(value)}
    return alike, {name: value for name, value in whole.items() if name not in alike}


def _apart(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Piece]]:
    """Return the values that each rank has whole, and this rank's pieces of sharded ones."""
    plain = {name: value for name, value in values.items() if not shards.is_sharded(value)}
    pieces = {name: shards.piece_of(value) for name, value in values.items() if name not in plain}
    return plain, {name: piece for name, piece in pieces.items() if piece is not None}


def _share(whole: Mapping[Any, Any], rank: int, world_size: int) -> dict[Any, Any]:
    """Return this rank's entries, so that all ranks have about as much to write; every rank computes the
    same division.
    """
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


@dataclass(frozen=True)
class Prepared:
    """State of all ranks' parts in the layout of this rank's model and optimizer, before any of it is in them."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None


def prepared(loaded: list[dict[str, Any]], trained: Trained, *, rank: int) -> Prepared:
    """Convert all ranks' parts to the layout of this rank's model and optimizer, which stay as they are.

    Raises:
        CoverageError: a parameter is of another shape, or the state of the optimizer is missing or not whole.
    """
    mine = loaded[rank if rank < len(loaded) else 0].get(OWN_TENSORS, {"model": {}})
    try:
        weights = {**_weights(loaded, trained.model), **mine["model"]}
    except (RuntimeError, CoverageError) as fault:
        raise _differs(fault) from fault
    if trained.optimizer is None:
        return Prepared(weights, None)
    return Prepared(weights, _optimizer_content(loaded, trained.optimizer, mine.get("optimizer")))


def restore(loaded: list[dict[str, Any]], content: Prepared, trained: Trained, *, rank: int, world_size: int) -> bool:
    """Restore all ranks' parts. Returns whether this rank found its own random numbers there.

    Raises:
        CoverageError: a parameter is missing or not the model's, or the optimizer's state is not whole.
    """
    is_known = rank < len(loaded)
    own = loaded[rank if is_known else 0]
    try:
        trained.model.load_state_dict({**content.weights, **own["own"]}, strict=True)
    except RuntimeError as fault:
        raise _differs(fault) from fault
    if trained.optimizer is not None and content.optimizer is not None:
        _restore_optimizer(content.optimizer, trained.optimizer)
    is_sharded = any(map(shards.is_sharded, trained.model.parameters()))
    extras.restore(
        loaded,
        extras.named(trained.scheduler, trained.extras),
        rank=rank,
        world_size=world_size,
        is_sharded_again=is_sharded and not any(map(was_sharded, loaded)),
    )
    if is_known:
        chance.set_random_state(own["rng"])
    return is_known


def was_sharded(part: Mapping[str, Any]) -> bool:
    """Return whether the model was sharded over the ranks when this part of it was saved."""
    return bool(part.get(WAS_SHARDED, part.get("model_pieces")))


def _differs(fault: Exception) -> CoverageError:
    return CoverageError(f"the model differs from the one that was saved: {fault}")


def _optimizer_content(
    loaded: list[dict[str, Any]], optimizer: torch.optim.Optimizer, mine: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the optimizer's content. ``mine``: what is this rank's own of it, if anything was declared so."""
    if any("optimizer" not in part for part in loaded):
        raise CoverageError("no optimizer was saved")
    found = {"state": {}, "param_groups": loaded[0]["optimizer"]["param_groups"]} if mine is None else mine
    state = {**_optimizer_state(loaded, optimizer), **found["state"]}
    return {"state": state, "param_groups": found["param_groups"]}


def _restore_optimizer(content: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    try:
        optimizer.load_state_dict(content)
    except (ValueError, KeyError) as fault:
        raise CoverageError(f"the optimizer differs from the one that was saved: {fault}") from fault


def _weights(loaded: list[dict[str, Any]], model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights by name, each in the layout of the model's own. The model itself refuses names that
    it lacks.
    """
    saved = _gathered([(part["model"], part.get("model_pieces", {})) for part in loaded])
    here = model.state_dict()
    return {name: shards.like(here.get(name, pieces[0]["values"]), pieces, name) for name, pieces in saved.items()}


def _gathered(parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Piece]]]) -> dict[str, list[Piece]]:
    """Return, for each tensor by name, its pieces in all ranks' parts, in their order."""
    found: dict[str, list[Piece]] = {}
    for plain, pieces in parts:
        for name, value in plain.items():
            if isinstance(value, torch.Tensor):
                found.setdefault(name, []).append(shards.whole(value))
        for name, piece in pieces.items():
            found.setdefault(name, []).append(piece)
    return found


def _optimizer_state(loaded: list[dict[str, Any]], optimizer: torch.optim.Optimizer) -> dict[int, dict[str, Any]]:
    """Return the optimizer's state by the number of each parameter."""
    parameters = dict(enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]))
    parts = [(part["optimizer"]["state"], part["optimizer"].get("pieces", {})) for part in loaded]
    keys = {key for rooms in parts for room in rooms for key in room}
    return {
        key: _state_of(parameters.get(key), [(plain.get(key, {}), pieces.get(key, {})) for plain, pieces in parts], key)
        for key in sorted(keys)
    }


def _state_of(
    parameter: torch.Tensor | None, parts: Sequence[tuple[Mapping[str, Any], Mapping[str, Piece]]], key: int
) -> dict[str, Any]:
    """Return one parameter's state. A tensor of the parameter's shape gets its layout; all others stay as they were
    saved.
    """
    found = {name: value for plain, _ in parts for name, value in plain.items()}
    for name, pieces in _gathered(parts).items():
        is_alike = parameter is not None and list(parameter.shape) == pieces[0]["shape"]
        template = parameter if is_alike else pieces[0]["values"]
        found[name] = shards.like(template, pieces, f"{name} of parameter {key}")
    return found
