"""Schedulers and extras: the other objects of a program that have a ``state_dict``.

Rank 0 alone writes a state that is the same on every rank, by the digest of its content. A state that differs is each
rank's own, like random numbers, and returns to the rank that saved it. If another number of ranks continues, only the
program can divide such a state: by its ``load_rank_states``, if it has one. Only a module of which nothing but buffers
differs is treated as the model is: a new rank gets the first rank's. A tensor that is sharded over the ranks is saved
piece by piece, and fits any number of ranks (``extra_pieces``).
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from muster.train.checkpoint import extra_pieces
from muster.train.checkpoint.extra_pieces import PIECES
from muster.train.data import stateful_loaders as loaders
from muster.train.parallel.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from muster.train.checkpoint.extra_pieces import Place
    from muster.train.parallel.ranks import Agreement
    from muster.train.parallel.shards import Piece

ALIKE = "stateful"
OWN = "own_stateful"
"""Keys in a rank's part: states that all ranks have alike (in rank 0's part alone), and this rank's own states."""


class Stateful(Protocol):
    """Object with a state, such as a scheduler.

    It may also have ``load_rank_states(states)``, which gets the states of all ranks that saved, in their order, and
    makes this rank's own from them. It is called only if the states differed and another number of ranks continues.
    """

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


def named(scheduler: Stateful | None, extras: Mapping[str, Stateful]) -> dict[str, Stateful]:
    known = {} if scheduler is None else {"scheduler": scheduler}
    return {**known, **{f"extra {name}": stateful for name, stateful in extras.items()}}


def part_of(statefuls: Mapping[str, Stateful]) -> dict[str, Any]:
    """Return the states that this rank is to save, before ``divided`` removes states that other ranks save too.

    Raises:
        CoverageError: one holds a tensor that cannot be saved.
    """
    states: dict[str, dict[str, Any]] = {}
    pieces: dict[str, dict[Place, Piece]] = {}
    for name, stateful in statefuls.items():
        states[name], own = extra_pieces.apart(name, stateful.state_dict())
        if own is not None:
            pieces[name] = own
    return {ALIKE: states, PIECES: pieces} if pieces else {ALIKE: states}


def divided(part: dict[str, Any], ranks: Agreement) -> dict[str, Any]:
    """Return ``part`` with only the states that this rank is to write. All ranks call it; a rank without a part passes
    ``{}``.
    """
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
    loaded: Sequence[Mapping[str, Any]],
    statefuls: Mapping[str, Stateful],
    *,
    rank: int,
    world_size: int,
    is_sharded_again: bool = False,
) -> None:
    """Restore the states.

    ``loaded``: all ranks' parts; of other ranks' own states only the names are there, unless the number of ranks
    differs. ``is_sharded_again``: the model was whole on every rank when it was saved, and is sharded here.

    Raises:
        CoverageError: one was not saved, or not all of it, or was each rank's own and another number of ranks saved it;
            or it is a loader that counts its own rank's batches, and another number of ranks saved it.
    """
    for name, stateful in statefuls.items():
        if loaders.is_stateful_loader(stateful) and not loaders.has_state_of_its_own(stateful):
            continue
        if len(loaded) != world_size and loaders.is_stateful_loader(stateful):
            raise CoverageError(loaders.cannot_continue(name, len(loaded), world_size))
        completed = partial(_completed, name, stateful, extra_pieces.gathered(loaded, name), is_sharded_again)
        if any(name in part.get(OWN, {}) for part in loaded):
            _restore_own(loaded, name, stateful, completed, rank=rank, world_size=world_size)
        elif name in loaded[0].get(ALIKE, {}):
            stateful.load_state_dict(completed(loaded[0][ALIKE][name]))
        else:
            raise CoverageError(f"no {name} was saved")


def _completed(
    name: str,
    stateful: Stateful,
    pieces: Mapping[Place, Sequence[Piece]],
    is_sharded_again: bool,  # noqa: FBT001  # for ``partial``
    state: dict[str, Any],
) -> dict[str, Any]:
    """Return the state with its sharded tensors.

    The extra's ``state_dict`` is called only if it is needed for the layout.
    """
    if not pieces and not (is_sharded_again and any(extra_pieces.tensors_in(state))):
        return state
    return extra_pieces.together(name, state, pieces, dict(extra_pieces.tensors_in(stateful.state_dict())))


def _restore_own(
    loaded: Sequence[Mapping[str, Any]],
    name: str,
    stateful: Stateful,
    completed: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    rank: int,
    world_size: int,
) -> None:
    for number, part in enumerate(loaded):
        if name not in part.get(OWN, {}):
            raise CoverageError(f"no {name} was saved by rank {number}, and by other ranks there was")
    if len(loaded) == world_size:
        stateful.load_state_dict(completed(loaded[rank][OWN][name]))
        return
    states = [part[OWN][name] for part in loaded]
    merge = getattr(stateful, "load_rank_states", None)
    if merge is not None:
        merge([completed(state) for state in states])
    elif isinstance(stateful, torch.nn.Module) and _has_parameters_alike(stateful, states):
        stateful.load_state_dict(completed(states[rank if rank < len(states) else 0]))
    else:
        raise CoverageError(
            f"{name} differed from rank to rank when {len(loaded)} ranks saved it, and {world_size} ranks continue: "
            "give it a method load_rank_states(states), which makes this rank's state from all of them, or keep it "
            "alike on all ranks"
        )


def _has_parameters_alike(module: torch.nn.Module, states: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether only the module's buffers differ, such as the running means of a batch norm."""
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    return len({digest_of([state.get(name) for name in names]) for state in states}) == 1


def digest_of(state: object) -> str:
    """Return the SHA-256 of plain values and tensors, equal if ranks have the same, on any device and in any order.

    Keys of a dictionary and members of a set are ordered by their own digests: two ranks may have inserted them in
    different orders, and a set of strings has another order in each process.
    """
    return _digest(state).hexdigest()


def _digest(value: object) -> hashlib._Hash:
    digest = hashlib.sha256()
    _fold(digest, value)
    return digest


def _fold(digest: hashlib._Hash, value: object) -> None:
    if isinstance(value, torch.Tensor):
        _fold_tensor(digest, value)
    elif isinstance(value, dict):
        digest.update(b"d%d;" % len(value))
        for entry in sorted(_digest(key).digest() + _digest(inner).digest() for key, inner in value.items()):
            digest.update(entry)
    elif isinstance(value, (set, frozenset)):
        digest.update(b"s%d;" % len(value))
        for member in sorted(_digest(inner).digest() for inner in value):
            digest.update(member)
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
    digest.update(f"t {value.dtype} {tuple(value.shape)};".encode())
    flat = value.detach().cpu().contiguous().reshape(-1)
    if flat.numel():
        digest.update((ctypes.c_char * (flat.numel() * flat.element_size())).from_address(flat.data_ptr()))


def _other(value: object) -> bytes:
    """Return a value's pickle, or its type's name if it cannot be pickled: the write refuses it later, with
    the reason.
    """
    try:
        return pickle.dumps(value, protocol=4)
    except Exception:  # noqa: BLE001  # whatever a foreign __reduce__ raises
        return type(value).__qualname__.encode()
