"""Tensors that are each rank's own though no mesh of torch's holds them: a pipeline's stage, experts, local replicas.

A program declares them by name (``OwnRule``). Each place along the declared mesh, without one each rank, saves its own
and gets it back; ranks of one place have the same and share the write. Two stages with two replicas each::

    rank   place   writes of stage.weight, stage.bias
    0      0       stage.weight of place 0
    1      0       stage.bias of place 0
    2      1       stage.weight of place 1
    3      1       stage.bias of place 1

Another number of ranks may continue, as long as the number of places is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.meshes import place_in
from muster.train.parallel.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from muster.train.checkpoint.extra_pieces import Place
    from muster.train.parallel.ranks import Agreement

OWN_TENSORS = "own_tensors"
"""Key in a rank's part: its place, and its share of what is the place's own of model and optimizer. In a part from
``exchange`` it is all of this rank's own."""


@dataclass(frozen=True)
class OwnRule:
    """Names of parameters that are each place's own, and this rank's place.

    ``names``: of parameters, of modules with all in them, or patterns such as ``experts.*``. ``sharer`` of
    ``num_sharers``: this rank's number among the ranks of its place.
    """

    names: tuple[str, ...]
    place: int
    num_places: int
    sharer: int
    num_sharers: int

    @classmethod
    def of(
        cls, names: Sequence[str] | str, mesh: DeviceMesh | None, model: torch.nn.Module, ranks: Agreement
    ) -> OwnRule | None:
        """Return the rule of this rank; None if no rank declares any. All ranks call it. Each may name its own
        tensors alone, as the stages of a pipeline do: what any rank names is each place's own.

        Raises, on every rank:
            ValueError: a name fits no parameter of any rank, or there is a mesh and no name, or not on all ranks.
        """
        told = ranks.gather(((names,) if isinstance(names, str) else tuple(names), mesh is not None))
        listed = tuple(dict.fromkeys(name for each, _ in told for name in each))
        if len({has_mesh for _, has_mesh in told}) > 1:
            raise ValueError("own_mesh is given on some ranks alone: give it on all of them, or on none")
        if not listed and mesh is None:
            return None
        place, num_places = (ranks.rank, ranks.world_size) if mesh is None else place_in(mesh)
        known = [name for name, _ in model.named_parameters(remove_duplicate=False)]
        fits = ranks.max([any(_fits(name, (each,)) for name in known) for each in listed] or [0])
        unknown = [each for each, is_known in zip(listed, fits, strict=False) if not is_known]
        if unknown or not listed:
            what = ", ".join(map(repr, unknown)) or "own_mesh without own"
            raise ValueError(f"own={listed!r}: {what} names no parameter of any rank")
        places = ranks.gather(place)
        sharers = [rank for rank, there in enumerate(places) if there == place]
        return cls(listed, place, num_places, sharers.index(ranks.rank), len(sharers))

    def holds(self, name: str) -> bool:
        """Return whether the parameter of that name is the place's own."""
        return _fits(name, self.names)

    def frame(self, model: dict[str, Any], optimizer: dict[str, Any] | None) -> dict[str, Any]:
        """Return what goes into a rank's part under ``OWN_TENSORS``."""
        made: dict[str, Any] = {"place": self.place, "num_places": self.num_places, "model": model}
        return made if optimizer is None else {**made, "optimizer": optimizer}


def _fits(name: str, names: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") or fnmatchcase(name, each) for each in names)


def require_form(own: Mapping[str, Any]) -> None:
    """Go through a part's own tensors as ``delivered`` does. Raises any exception if they have another form."""
    _Frame.of(own)


def delivered(
    parts: Mapping[int, Mapping[str, Any]], rule: OwnRule | None, ranks: Agreement, holder_of: Mapping[int, int]
) -> dict[str, Any] | None:
    """Return this rank's own tensors, from whichever ranks read them; None if none were saved.

    ``parts``: the parts that this rank read. ``holder_of``: the rank that read a file. All ranks call it.

    Raises, on every rank:
        CoverageError: they were saved for another number of places, or the program declares none.
    """
    frames: dict[int, _Frame] = {}
    for gathered in ranks.gather(
        {file: _Frame.of(part[OWN_TENSORS]) for file, part in parts.items() if OWN_TENSORS in part}
    ):
        frames.update(gathered)
    if not frames:
        return None
    _require_places(frames, rule)
    places = ranks.gather(-1 if rule is None else rule.place)
    made: dict[str, Any] = {"model": {}, "optimizer": {"state": {}}}
    for file, frame in sorted(frames.items()):
        own = dict(_tensors_in(parts[file][OWN_TENSORS])) if file in parts else {}
        wanting = [rank for rank, place in enumerate(places) if place == frame.place]
        tensors = {
            place: _sent(own.get(place), kind, holder_of[file], wanting, ranks) for place, kind in frame.kinds.items()
        }
        if ranks.rank in wanting:
            _merge(made, frame.values)
            for place, tensor in tensors.items():
                _put(made, place, tensor)
    return made


@dataclass(frozen=True)
class _Frame:
    """What a file holds of its place's own: all but the tensors, and the kind of each tensor by its place there."""

    place: int
    num_places: int
    values: dict[str, Any]
    kinds: dict[Place, tuple[list[int], torch.dtype]]

    @classmethod
    def of(cls, own: Mapping[str, Any]) -> _Frame:
        kinds = {place: (list(value.shape), value.dtype) for place, value in _tensors_in(own)}
        values = {name: _without_tensors(own[name]) for name in ("model", "optimizer") if name in own}
        return cls(own["place"], own["num_places"], values, kinds)


def _require_places(frames: Mapping[int, _Frame], rule: OwnRule | None) -> None:
    num_saved = next(iter(frames.values())).num_places
    if rule is None:
        raise CoverageError(
            f"it holds tensors that are each rank's own, for {num_saved} places: declare them by own= of train.start, "
            "as the program that saved it did"
        )
    if rule.num_places != num_saved or {frame.place for frame in frames.values()} != set(range(num_saved)):
        raise CoverageError(
            f"tensors that are each rank's own ({', '.join(rule.names)}) were saved for {num_saved} places, and here "
            f"are {rule.num_places}: they cannot be divided again, so continue with as many ranks, or with an own_mesh "
            f"of {num_saved} places"
        )


def _sent(
    tensor: torch.Tensor | None,
    kind: tuple[list[int], torch.dtype],
    holder: int,
    wanting: Sequence[int],
    ranks: Agreement,
) -> torch.Tensor | None:
    """Send a tensor from the rank that read it to the ranks of its place, and return it on these."""
    others = [rank for rank in wanting if rank != holder]
    if ranks.rank == holder and tensor is not None:
        for rank in others:
            ranks.send(tensor.contiguous(), rank)
        return tensor
    if ranks.rank not in others:
        return None
    received = torch.empty(kind[0], dtype=kind[1])
    ranks.receive(received, holder)
    return received


def _tensors_in(value: Mapping[Any, Any], place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield the plain tensors in dictionaries of any depth; all others travel with the values."""
    for key, inner in value.items():
        if isinstance(inner, dict):
            yield from _tensors_in(inner, (*place, key))
        elif isinstance(inner, torch.Tensor) and is_plain(inner):
            yield (*place, key), inner


def _without_tensors(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_tensors(inner)
            for key, inner in value.items()
            if not (isinstance(inner, torch.Tensor) and is_plain(inner))
        }
    return value


def _merge(made: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(made.get(key), dict):
            _merge(made[key], value)
        else:
            made[key] = value


def _put(made: dict[str, Any], place: Place, tensor: torch.Tensor | None) -> None:
    room = made
    for key in place[:-1]:
        room = room.setdefault(key, {})
    room[place[-1]] = tensor
