"""Schedulers and extras: whatever else a program has with a ``state_dict``.

A state that is the same on every rank, by the digest of what is to be written, is written once, by rank 0. One that
differs is each rank's own, as random numbers are, and comes back to the rank that saved it. Where another number of
ranks goes on there is no right answer for it but the program's: its ``load_rank_states``, if it has one.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import struct
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch

from muster.train import shards
from muster.train.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from muster.train.ranks import Agreement

ALIKE = "stateful"
OWN = "own_stateful"
"""In a rank's part of a checkpoint: what all have alike (rank 0's part alone), and what is this rank's own."""


class Stateful(Protocol):
    """What a scheduler is to us.

    Beside it may have ``load_rank_states(states)``: the states of all ranks that saved, in their order, from which it
    makes this rank's own. It is asked only where they differed and another number of ranks goes on.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


def named(scheduler: Stateful | None, extras: Mapping[str, Stateful]) -> dict[str, Stateful]:
    known = {} if scheduler is None else {"scheduler": scheduler}
    return {**known, **{f"extra {name}": stateful for name, stateful in extras.items()}}


def states_of(statefuls: Mapping[str, Stateful]) -> dict[str, dict[str, Any]]:
    """By name, what each is to be restored from. Raises CoverageError: one holds a mere piece of a sharded tensor."""
    states = {name: stateful.state_dict() for name, stateful in statefuls.items()}
    for name, state in states.items():
        _require_whole(name, state)
    return states


def divided(part: dict[str, Any], ranks: Agreement) -> dict[str, Any]:
    """``part`` with only what this rank is to write of them. All ranks together; one without a part passes ``{}``."""
    states = part.get(ALIKE, {})
    if ranks.world_size == 1 or not any(ranks.max([len(states)])):
        return part
    told = ranks.gather({name: digest_of(state) for name, state in states.items()})
    if not part:
        return part
    alike = {name for name, digest in told[0].items() if all(other.get(name) == digest for other in told)}
    rest = {name: value for name, value in part.items() if name != ALIKE}
    own = {name: state for name, state in states.items() if name not in alike}
    if own:
        rest[OWN] = own
    if ranks.rank == 0:
        rest[ALIKE] = {name: state for name, state in states.items() if name in alike}
    return rest


def restore(
    loaded: Sequence[Mapping[str, Any]], statefuls: Mapping[str, Stateful], *, rank: int, world_size: int
) -> None:
    """``loaded``: all ranks' parts; of others' own states only the names are there, unless the number of ranks differs.

    Raises:
        CoverageError: one was not saved, or was each rank's own and another number of ranks saved it.
    """
    for name, stateful in statefuls.items():
        if any(name in part.get(OWN, {}) for part in loaded):
            _restore_own(loaded, name, stateful, rank=rank, world_size=world_size)
        elif name in loaded[0].get(ALIKE, {}):
            stateful.load_state_dict(loaded[0][ALIKE][name])
        else:
            raise CoverageError(f"no {name} was saved")


def _restore_own(
    loaded: Sequence[Mapping[str, Any]], name: str, stateful: Stateful, *, rank: int, world_size: int
) -> None:
    for number, part in enumerate(loaded):
        if name not in part.get(OWN, {}):
            raise CoverageError(f"no {name} was saved by rank {number}, and by other ranks there was")
    if len(loaded) == world_size:
        stateful.load_state_dict(loaded[rank][OWN][name])
        return
    merge = getattr(stateful, "load_rank_states", None)
    if merge is None:
        raise CoverageError(
            f"{name} differed from rank to rank when {len(loaded)} of them saved it, and {world_size} go on: give it a "
            f"method load_rank_states(states), which makes this rank's own of theirs, or keep it alike on all ranks"
        )
    merge([part[OWN][name] for part in loaded])


def digest_of(state: object) -> str:
    """SHA-256 of plain values and tensors, equal where ranks have the same, on whatever device."""
    digest = hashlib.sha256()
    _fold(digest, state)
    return digest.hexdigest()


def _fold(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, torch.Tensor):
        _fold_tensor(digest, value)
    elif isinstance(value, dict):
        digest.update(b"d%d;" % len(value))
        for key, inner in value.items():
            _fold(digest, key)
            _fold(digest, inner)
    elif isinstance(value, (list, tuple)):
        digest.update(b"l%d;" % len(value))
        for inner in value:
            _fold(digest, inner)
    elif isinstance(value, float):
        digest.update(b"f" + struct.pack("<d", value))
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        digest.update(f"{type(value).__name__} {value!r};".encode())
    else:
        digest.update(_other(value))


def _fold_tensor(digest: hashlib._Hash, value: torch.Tensor) -> None:
    held = cast("Any", value).to_local() if hasattr(value, "to_local") else value
    digest.update(f"t {held.dtype} {tuple(held.shape)};".encode())
    flat = held.detach().cpu().contiguous().reshape(-1)
    if flat.numel():
        digest.update((ctypes.c_char * (flat.numel() * flat.element_size())).from_address(flat.data_ptr()))


def _other(value: object) -> bytes:
    """What cannot be pickled is refused where it is written, with its reason."""
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ raises
        return type(value).__qualname__.encode()


def _require_whole(name: str, value: object) -> None:
    """A rank's own piece of a sharded tensor has a meaning only beside the other ranks'."""
    if isinstance(value, dict):
        for inner in value.values():
            _require_whole(name, inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_whole(name, inner)
    elif shards.is_sharded(value) and any(not placement.is_replicate() for placement in cast("Any", value).placements):
        raise CoverageError(
            f"{name} holds a tensor that is sharded over the ranks, of which it would hold a piece alone: each rank "
            "must have it whole"
        )
