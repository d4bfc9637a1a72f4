"""Exchange of a checkpoint's content between ranks, after each has read and verified its share of the files.

One rank reads each file, once. The content that other ranks need goes over the ranks' own group: to all at once if all
need all of it, as with DDP, else the exact region that a rank lacks. If each rank already has what it saved, nothing
large is sent. The result has the form in which it was read (``state.part_of``), with empty pieces where nothing was
needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch

from muster.train.checkpoint import extra_pieces, extras, own_tensors, state
from muster.train.checkpoint.extra_pieces import PIECES
from muster.train.checkpoint.own_tensors import OWN_TENSORS
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel import shards
from muster.train.parallel.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from muster.train.checkpoint.extra_pieces import Place
    from muster.train.checkpoint.state import Trained
    from muster.train.parallel.ranks import Agreement
    from muster.train.parallel.shards import Piece

Part = dict[str, Any]
Owner = int | str | None
Where = tuple[int, Owner, "str | Place"]
_INLINE_BYTES = 4096
"""Tensors up to this size travel with their list entry, which costs less than a message of their own."""


@dataclass(frozen=True)
class _Region:
    offset: list[int]
    size: list[int]


@dataclass(frozen=True)
class _Entry:
    """A tensor in a file, or a piece of one.

    ``owner``: the number of the parameter to whose optimizer state it belongs, or the name of the extra; None: the
    model. ``name``: for an extra, the place in its state.
    """

    file: int
    holder: int
    owner: Owner
    name: str | Place
    shape: list[int]
    region: _Region
    dtype: torch.dtype
    inline: torch.Tensor | None


def holder_of(file: int, world_size: int) -> int:
    """Return the rank that reads a file: its own rank if there is one."""
    return file % world_size


def shared_out(parts: Mapping[int, Part], num_files: int, trained: Trained, ranks: Agreement) -> list[Part]:
    """Return all ``num_files`` parts in their order, each with the content that this rank needs of it.

    ``parts``: the parts that this rank read.
    """
    holders = {file: holder_of(file, ranks.world_size) for file in range(num_files)}
    mine = own_tensors.delivered(parts, trained.own, ranks, holders)
    made = (
        [{**parts[file]} for file in range(num_files)]
        if ranks.world_size == 1
        else _exchanged(parts, num_files, trained, ranks)
    )
    for part in made:
        part.pop(OWN_TENSORS, None)
        if mine is not None:
            part[OWN_TENSORS] = mine
    return made


def _exchanged(parts: Mapping[int, Part], num_files: int, trained: Trained, ranks: Agreement) -> list[Part]:
    own = [(_entry(where, piece, ranks.rank), piece["values"]) for where, piece in _pieces(parts)]
    values = {(entry.file, entry.owner, entry.name): value for entry, value in own}
    entries = [entry for told in ranks.gather([entry for entry, _ in own]) for entry in told]
    wished = _by_entry(ranks.gather(_requested_regions(entries, trained)), entries)
    made = _frames(parts, num_files, ranks)
    for number, entry in enumerate(entries):
        held = values.get((entry.file, entry.owner, entry.name), entry.inline)
        piece = _delivered(entry, held, wished.get(number, {}), ranks)
        _room(made[entry.file], entry.owner)[entry.name] = piece
    return made


def require_form(part: Part) -> None:
    """Go through a part as ``shared_out`` does, on this rank alone. Raises any exception if it has another form."""
    for where, piece in _pieces({0: part}):
        _entry(where, piece, 0)
    _frame(part, is_resized=True)
    len(part["own"])
    if OWN_TENSORS in part:
        own_tensors.require_form(part[OWN_TENSORS])


def _pieces(parts: Mapping[int, Part]) -> Iterator[tuple[Where, Piece]]:
    """Yield every tensor of the model and of the optimizer's state, and every piece of an extra's, with its place."""
    for file, part in sorted(parts.items()):
        optimizer = part.get("optimizer", {"state": {}})
        plain = {None: part["model"], **optimizer["state"]}
        sharded = {None: part.get("model_pieces", {}), **optimizer.get("pieces", {}), **part.get(PIECES, {})}
        for owner, room in plain.items():
            for name, value in room.items():
                if isinstance(value, torch.Tensor):
                    yield (file, owner, name), shards.whole(value)
        for owner, room in sharded.items():
            for name, piece in room.items():
                yield (file, owner, name), piece


def _entry(where: Where, piece: Piece, rank: int) -> _Entry:
    file, owner, name = where
    values = piece["values"]
    is_small = values.numel() * values.element_size() <= _INLINE_BYTES or not is_plain(values)
    region = _Region(piece["offset"], list(values.shape))
    inline = values.clone() if is_small else None
    return _Entry(file, rank, owner, name, piece["shape"], region, values.dtype, inline)


class _Here:
    """State of the program now. An extra's ``state_dict`` is called only if pieces of it were saved."""

    def __init__(self, trained: Trained) -> None:
        groups = [] if trained.optimizer is None else trained.optimizer.param_groups
        self._parameters = dict(enumerate(parameter for group in groups for parameter in group["params"]))
        self._has_optimizer = trained.optimizer is not None
        self._model = trained.model.state_dict()
        self._extras = extras.named(trained.scheduler, trained.extras)
        self._states: dict[str, dict[Place, torch.Tensor]] = {}

    def has_use(self, entry: _Entry) -> bool:
        """Return whether the program uses an entry.

        A program without an optimizer uses no optimizer state, and a program without the extra uses none of its
        tensors.
        """
        if isinstance(entry.owner, str):
            return entry.owner in self._extras
        return entry.owner is None or self._has_optimizer

    def template(self, entry: _Entry) -> torch.Tensor | None:
        """Return the program's own tensor for an entry, whose layout the entry gets; None: there is no such tensor."""
        if isinstance(entry.owner, str):
            return self._state_of(entry.owner).get(cast("Place", entry.name))
        return self._model.get(cast("str", entry.name)) if entry.owner is None else self._parameters.get(entry.owner)

    def _state_of(self, name: str) -> dict[Place, torch.Tensor]:
        if name not in self._states:
            self._states[name] = dict(extra_pieces.tensors_in(self._extras[name].state_dict()))
        return self._states[name]


def _requested_regions(entries: Sequence[_Entry], trained: Trained) -> dict[int, _Region | None]:
    """Return, by the entry's index, the region of the whole that this rank needs; None: all of the entry.

    An entry of which the rank needs nothing is left out. Of a sharded model each rank needs about as much as it saved,
    so that all ranks' requests together are about as many as the entries, and not as many times the ranks.
    """
    here = _Here(trained)
    found: dict[int, _Region | None] = {}
    for number, entry in enumerate(entries):
        wish = _requested_region(entry, here.template(entry)) if here.has_use(entry) else None
        if wish is not None:
            found[number] = None if wish == entry.region else wish
    return found


def _by_entry(
    regions: Sequence[Mapping[int, _Region | None]], entries: Sequence[_Entry]
) -> dict[int, dict[int, _Region]]:
    """Return, for each entry that any rank needs, a dictionary from rank to region."""
    wished: dict[int, dict[int, _Region]] = {}
    for rank, told in enumerate(regions):
        for number, region in told.items():
            wished.setdefault(number, {})[rank] = entries[number].region if region is None else region
    return wished


def _requested_region(entry: _Entry, template: Any) -> _Region | None:
    """Return the region of an entry that this rank needs, or None.

    An entry that fits no tensor here is requested whole: the code that puts it together reports the mismatch.
    """
    if template is None or list(template.shape) != entry.shape or not shards.is_sharded(template):
        return entry.region
    try:
        size, offset = shards.region(template)
    except CoverageError:
        return entry.region
    begins = [max(*both) for both in zip(entry.region.offset, offset, strict=True)]
    ends = [
        min(at + length, wanted + wanted_length)
        for at, length, wanted, wanted_length in zip(entry.region.offset, entry.region.size, offset, size, strict=True)
    ]
    if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
        return None
    return _Region(begins, [end - begin for begin, end in zip(begins, ends, strict=True)])


def _frames(parts: Mapping[int, Part], num_files: int, ranks: Agreement) -> list[Part]:
    """Return the parts without their tensors: all other content is small and goes to every rank."""
    told: dict[int, Part] = {}
    is_resized = ranks.world_size != num_files
    for found in ranks.gather({file: _frame(part, is_resized=is_resized) for file, part in parts.items()}):
        told.update(found)
    is_grown = ranks.world_size > num_files
    first = parts.get(0, {})
    kept = (extras.ALIKE, *(("own", "rng") if is_grown else ()))
    for_all = ranks.from_first({name: first[name] for name in kept if name in first} if ranks.rank == 0 else None)
    made = []
    for file in range(num_files):
        read = parts.get(file, {})
        own = {name: read[name] for name in ("own", "rng", extras.OWN) if name in read}
        made.append({**told[file], **(for_all if file == 0 else {}), **own})
    return made


def _frame(part: Part, *, is_resized: bool) -> Part:
    """Return a part without tensors, with the names of a rank's own extras.

    The states of these extras are included if the number of ranks has changed, since their own ranks may no longer
    exist.
    """
    frame: Part = {"model": {}, "model_pieces": {}, state.WAS_SHARDED: state.was_sharded(part)}
    if extras.OWN in part:
        frame[extras.OWN] = part[extras.OWN] if is_resized else dict.fromkeys(part[extras.OWN])
    if "optimizer" in part:
        optimizer = part["optimizer"]
        plain = {
            key: {name: value for name, value in room.items() if not isinstance(value, torch.Tensor)}
            for key, room in optimizer["state"].items()
        }
        rest = {name: value for name, value in optimizer.items() if name not in {"state", "pieces"}}
        frame["optimizer"] = {**rest, "state": plain, "pieces": {}}
    return frame


def _room(part: Part, owner: Owner) -> dict[str | Place, Piece]:
    room: dict[str | Place, Piece]
    if isinstance(owner, str):
        room = part.setdefault(PIECES, {}).setdefault(owner, {})
    else:
        room = part["model_pieces"] if owner is None else part["optimizer"]["pieces"].setdefault(owner, {})
    return room


def _delivered(entry: _Entry, tensor: torch.Tensor | None, requested: Mapping[int, _Region], ranks: Agreement) -> Piece:
    """Deliver one entry to each rank that needs it, and return this rank's piece. All ranks take the entries in one
    order.
    """
    own_wish = requested.get(ranks.rank)
    if entry.inline is None:
        others = {rank: region for rank, region in requested.items() if rank != entry.holder}
        if len(others) == ranks.world_size - 1 and all(region == entry.region for region in others.values()):
            tensor = torch.empty(entry.region.size, dtype=entry.dtype) if tensor is None else tensor.contiguous()
            ranks.broadcast(tensor, entry.holder)
        elif ranks.rank == entry.holder and tensor is not None:
            for rank, region in others.items():
                ranks.send(_cut(tensor, entry, region).contiguous(), rank)
        elif own_wish is not None:
            received = torch.empty(own_wish.size, dtype=entry.dtype)
            ranks.receive(received, entry.holder)
            return {"shape": entry.shape, "offset": own_wish.offset, "values": received}
    if own_wish is None or tensor is None:
        nothing = torch.empty([0] * len(entry.shape), dtype=entry.dtype)
        return {"shape": entry.shape, "offset": entry.region.offset, "values": nothing}
    return {"shape": entry.shape, "offset": own_wish.offset, "values": _cut(tensor, entry, own_wish)}


def _cut(tensor: torch.Tensor, entry: _Entry, region: _Region) -> torch.Tensor:
    if region == entry.region:
        return tensor
    places = zip(entry.region.offset, region.offset, region.size, strict=True)
    return tensor[tuple(slice(at - begin, at - begin + length) for begin, at, length in places)]
