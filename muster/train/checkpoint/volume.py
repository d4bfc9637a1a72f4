"""What a checkpoint comes to by the tensors of the state: elements × bytes of each.

The first one has none before it to be compared with. So each rank's file is held against the tensors of its part, and
all parts together against model and optimizer as the program has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint.staging import is_plain
from muster.train.parallel import shards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from muster.train.checkpoint.state import Trained

_TENSOR_BYTES = 1024
"""At most what torch's format adds to a tensor: its name, type, shape and place, and what fills up to 64 bytes."""
_VALUE_BYTES = 64
"""As much for a number, or for a word beyond its letters."""
_LETTER_BYTES = 4


@dataclass(frozen=True)
class Volume:
    """Of one rank's part. ``state_bytes``: of the tensors of model and optimizer in it.

    Its file holds ``least_bytes`` to ``most_bytes``; ``most_bytes`` None: it has tensors whose size in a file is theirs
    to say, such as sparse ones.
    """

    state_bytes: int
    least_bytes: int
    most_bytes: int | None


def of_part(part: Mapping[str, Any]) -> Volume:
    """``part``: as it is written, with what this rank saves of all that the ranks have alike."""
    optimizer = part.get("optimizer", {})
    rooms = (part["model"], part["model_pieces"], optimizer.get("state", {}), optimizer.get("pieces", {}))
    tensors = [value for value in _leaves(part) if isinstance(value, torch.Tensor)]
    plain = [value for value in tensors if is_plain(value)]
    held: dict[int, int] = {}
    for value in plain:
        storage = value.untyped_storage()
        held[storage.data_ptr()] = max(held.get(storage.data_ptr(), 0), min(value.nbytes, storage.nbytes()))
    most_bytes = sum(value.nbytes + _TENSOR_BYTES for value in plain) + _words_bytes(part)
    is_bounded = len(plain) == len(tensors)
    return Volume(sum(map(_tensor_bytes, rooms)), sum(held.values()), most_bytes if is_bounded else None)


def of_state(trained: Trained) -> int:
    """Bytes of all tensors of model and optimizer that the ranks save once for all; a sharded one counts whole."""
    parameters = {name for name, _ in trained.model.named_parameters(remove_duplicate=False)}
    model = {
        name: value
        for name, value in trained.model.state_dict().items()
        if name in parameters or shards.is_sharded(value)
    }
    optimizer = {} if trained.optimizer is None else trained.optimizer.state_dict()["state"]
    return _tensor_bytes(model) + _tensor_bytes(optimizer)


def _tensor_bytes(value: object) -> int:
    return sum(inner.numel() * inner.element_size() for inner in _leaves(value) if isinstance(inner, torch.Tensor))


def _words_bytes(value: object) -> int:
    """At most, of all that is no tensor."""
    others = [inner for inner in _leaves(value) if not isinstance(inner, torch.Tensor)]
    letters = sum(len(inner) for inner in others if isinstance(inner, (str, bytes, bytearray)))
    return _VALUE_BYTES * len(others) + _LETTER_BYTES * letters


def _leaves(value: object) -> Iterator[Any]:
    """What dictionaries, lists, tuples and sets of any depth hold, and the keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(key)
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
