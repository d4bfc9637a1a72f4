"""Expected size of a checkpoint by the tensors of the state: elements × bytes of each.

The first checkpoint has no earlier one to be compared with. So each rank's file is compared with the tensors of its
part, and all parts together with model and optimizer as the program has them.
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
"""Most bytes that torch's format adds to a tensor: its name, type, shape and place, and padding to 64 bytes."""
_VALUE_BYTES = 64
"""Most bytes of a number, or of a text in addition to its letters."""
_LETTER_BYTES = 4


@dataclass(frozen=True)
class Volume:
    """Size of one rank's part. ``state_bytes``: bytes of the tensors of model and optimizer in it.

    Its file holds ``least_bytes`` to ``most_bytes``. ``most_bytes`` None: it has tensors, such as sparse ones, whose
    size in a file cannot be computed here.
    """

    state_bytes: int
    least_bytes: int
    most_bytes: int | None


def of_part(part: Mapping[str, Any]) -> Volume:
    """Return the volume of a part.

    ``part``: as it is written, with this rank's share of the state that all ranks have alike.
    """
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
    """Return the bytes of all tensors of model and optimizer that the ranks save once for all; a sharded one counts
    whole.
    """
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
    """Return the most bytes of all values that are no tensors."""
    others = [inner for inner in _leaves(value) if not isinstance(inner, torch.Tensor)]
    letters = sum(len(inner) for inner in others if isinstance(inner, (str, bytes, bytearray)))
    return _VALUE_BYTES * len(others) + _LETTER_BYTES * letters


def _leaves(value: object) -> Iterator[Any]:
    """Yield the values in dictionaries, lists, tuples and sets of any depth, and the keys."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(key)
            yield from _leaves(inner)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
