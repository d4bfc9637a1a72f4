"""Tensors of which each rank has a piece (FSDP2, HSDP, tensor parallelism, or both on one mesh).

They are saved piece by piece, each once, and put together again for any layout of the next attempt. A piece is
identified by its offset in the whole: so the layout that saved it may differ from the one that reads it, and a tensor
that was whole on every rank is a piece with offset 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict, cast

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.tensor import DTensor


class CoverageError(Exception):
    """The parts of a checkpoint do not make up the whole state."""


class Piece(TypedDict):
    """Piece of a tensor. ``shape``: of the whole tensor; ``offset``: of this piece in it."""

    shape: list[int]
    offset: list[int]
    values: torch.Tensor


class _Placed(Protocol):
    def is_replicate(self) -> bool: ...

    def is_partial(self) -> bool: ...


def is_sharded(value: object) -> bool:
    """Return whether a value is a tensor on a mesh of ranks, even if it is whole on each."""
    return isinstance(value, torch.Tensor) and hasattr(value, "device_mesh")


def local_of(value: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a tensor, without its gradient: its piece if it is sharded, in the same memory."""
    found: Any = value.detach()
    local: torch.Tensor = found.to_local() if is_sharded(found) else found
    return local


def piece_of(value: Any) -> Piece | None:
    """Return this rank's piece of a sharded tensor; None if another rank with the same piece saves it.

    Raises:
        CoverageError: the ranks hold summands of it and no pieces.
    """
    tensor = cast("DTensor", value)
    offset = region(tensor)[1]
    if not _is_owner(tensor):
        return None
    return {"shape": list(tensor.shape), "offset": offset, "values": _alone(tensor.to_local())}


def _alone(values: torch.Tensor) -> torch.Tensor:
    """Return values that are not a view of something larger, which would be saved with them."""
    if values.untyped_storage().nbytes() > values.numel() * values.element_size():
        return values.clone()
    return values


def whole(value: torch.Tensor) -> Piece:
    """Return the piece of a tensor that one rank has saved for all."""
    return {"shape": list(value.shape), "offset": [0] * value.dim(), "values": value}


def like(template: Any, pieces: Sequence[Piece], name: str) -> torch.Tensor:
    """Return the tensor that the pieces make up, in the layout of ``template``: this rank's piece of it, or all of it.

    Raises:
        CoverageError: the pieces are of another shape, or do not cover what this rank needs.
    """
    shape = list(template.shape)
    for piece in pieces:
        if piece["shape"] != shape:
            raise CoverageError(f"{name} was saved in shape {piece['shape']}, and is {shape} here")
    if not is_sharded(template):
        return _assembled(pieces, shape, [0] * len(shape), name)
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # nearly a second, and only who shards needs it

    size, offset = region(template)
    local = _assembled(pieces, size, offset, name).to(template.device)
    placed: torch.Tensor = DTensor.from_local(
        local,
        template.device_mesh,
        template.placements,
        run_check=False,
        shape=template.shape,
        stride=template.stride(),
    )
    return placed


def _assembled(pieces: Sequence[Piece], size: Sequence[int], offset: Sequence[int], name: str) -> torch.Tensor:
    if not pieces:
        raise CoverageError(f"no piece of {name} was saved")
    first = pieces[0]["values"]
    if list(first.shape) == list(size) and pieces[0]["offset"] == list(offset):
        return first
    made = first.new_empty(list(size))
    num_found = 0
    for piece in pieces:
        num_found += _copied(piece, made, offset)
    if num_found != made.numel():
        raise CoverageError(f"of {name}, {made.numel() - num_found} of {made.numel()} values were not saved")
    return made


def _copied(piece: Piece, made: torch.Tensor, offset: Sequence[int]) -> int:
    """Copy the common values of the piece and ``made``, which begins at ``offset``. Returns how many values."""
    values, here, there = piece["values"], [], []
    for begin, length, wanted, wanted_length in zip(piece["offset"], values.shape, offset, made.shape, strict=True):
        low, high = max(begin, wanted), min(begin + length, wanted + wanted_length)
        if low >= high:
            return 0
        here.append(slice(low - begin, high - begin))
        there.append(slice(low - wanted, high - wanted))
    found = values[tuple(here)]
    made[tuple(there)] = found
    return found.numel()


def region(tensor: Any) -> tuple[list[int], list[int]]:
    """Return (size, offset) of this rank's piece of a sharded tensor, as torch's own checkpoints compute them.

    Raises:
        CoverageError: the ranks hold summands of it and no pieces.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415  # as above

    if any(placement.is_partial() for placement in _placements(tensor)):
        raise CoverageError("the ranks hold summands of a tensor, which is no state to save")
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return list(size), list(offset)


def _is_owner(tensor: DTensor) -> bool:
    """Return whether this rank is the first along each dimension of the mesh on which all ranks have the
    same values.
    """
    place: Sequence[int] = tensor.device_mesh.get_coordinate() or []
    return all(at == 0 or not one.is_replicate() for at, one in zip(place, _placements(tensor), strict=True))


def _placements(tensor: DTensor) -> Sequence[_Placed]:
    return cast("Sequence[_Placed]", tensor.placements)
