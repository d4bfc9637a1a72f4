"""Sharded tensors in the states of schedulers and extras, such as averages of a sharded model.

They are taken out of a state and saved piece by piece, as the model's own are, and put back in the layout that the
program has now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from muster.train.parallel import shards
from muster.train.parallel.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from muster.train.parallel.shards import Piece

PIECES = "stateful_pieces"
"""Key in a rank's part of a checkpoint: by the name of an extra and the place in its state, this rank's piece. A name
is there on each rank, also on a rank that has no piece to save."""
MISSING = None
"""Placeholder for a sharded tensor in a saved state."""

Place = tuple[Any, ...]
"""Keys and positions that lead to a tensor in a state."""


def apart(name: str, state: dict[str, Any]) -> tuple[dict[str, Any], dict[Place, Piece] | None]:
    """Return the state without its sharded tensors, and this rank's pieces of them; None: it has none.

    Raises:
        CoverageError: the ranks hold summands of one, and no pieces.
    """
    sharded = {place: value for place, value in tensors_in(state) if shards.is_sharded(value)}
    if not sharded:
        return state, None
    try:
        pieces = {place: shards.piece_of(value) for place, value in sharded.items()}
    except CoverageError as fault:
        raise CoverageError(f"{name}: {fault}") from fault
    left = _replaced(state, dict.fromkeys(sharded, MISSING), ())
    return left, {place: piece for place, piece in pieces.items() if piece is not None}


def together(
    name: str, state: dict[str, Any], pieces: Mapping[Place, Sequence[Piece]], here: Mapping[Place, torch.Tensor]
) -> dict[str, Any]:
    """Return the state with its tensors again, each in the layout of ``here``; a tensor that is not in ``here`` is
    whole.

    ``here``: the program's own state now. A tensor that was whole in the saved state and is sharded here gets that
    layout too.

    Raises:
        CoverageError: one has another shape here, or was not saved as a whole.
    """
    saved = dict(pieces)
    for place, value in tensors_in(state):
        template = here.get(place)
        if template is not None and shards.is_sharded(template) and not shards.is_sharded(value):
            saved[place] = [shards.whole(value)]
    made = {}
    for place, found in saved.items():
        template = here.get(place, torch.empty(found[0]["shape"], device="meta"))
        made[place] = shards.like(template, found, f"{name}, {' '.join(map(str, place))}")
    return _replaced(state, made, ()) if made else state


def gathered(parts: Sequence[Mapping[str, Any]], name: str) -> dict[Place, list[Piece]]:
    """Return, for each sharded tensor of one extra, its pieces in all ranks' parts, in their order."""
    found: dict[Place, list[Piece]] = {}
    for part in parts:
        for place, piece in part.get(PIECES, {}).get(name, {}).items():
            found.setdefault(place, []).append(piece)
    return found


def tensors_in(value: object, place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    """Yield the tensors in dictionaries, lists and tuples of any depth, with their places."""
    if isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from tensors_in(inner, (*place, key))
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from tensors_in(inner, (*place, position))


def _replaced(value: Any, by: Mapping[Place, Any], place: Place) -> Any:
    """Return a copy of the containers with ``by`` in its places; all other values are the same objects."""
    if place in by:
        return by[place]
    if isinstance(value, dict):
        return {key: _replaced(inner, by, (*place, key)) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        made = [_replaced(inner, by, (*place, position)) for position, inner in enumerate(value)]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    return value
