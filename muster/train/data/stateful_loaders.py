"""Loaders of torchdata as extras. ``StatefulDataLoader`` counts the batches of its own rank.

All ranks have read equally many, so their states are often alike, and would load into any number of ranks without a
word. But the batches of other ranks hold other samples: some would be taken twice, and others never. So such a state
continues on the number of ranks that saved it, unless the loader reads a stream of ``run.samples``, whose own state
fits any number of ranks. Then the loader's state is left out, since it would skip what the stream has skipped already.
"""

from __future__ import annotations

from typing import Any

from muster.train.data.streams import SampleStream

_MODULES = ("torchdata.",)
_NAME = "StatefulDataLoader"


def is_stateful_loader(value: object) -> bool:
    """Return whether it is torchdata's loader, or a class made from it. torchdata itself is not imported."""
    return any(each.__name__ == _NAME and each.__module__.startswith(_MODULES) for each in type(value).__mro__)


def has_state_of_its_own(loader: Any) -> bool:
    """Return whether the loader's position is its own, and not a stream's."""
    return not isinstance(loader.batch_sampler, SampleStream)


def cannot_continue(name: str, num_saved: int, num_ranks: int) -> str:
    """Return why a loader's state cannot be used."""
    return (
        f"{name} is a StatefulDataLoader, whose state counts the batches of one rank: {num_saved} ranks saved it, and "
        f"on {num_ranks} some samples would be taken twice and others never. Let it read a stream, which continues on "
        "any number of ranks: StatefulDataLoader(data, batch_sampler=run.samples('train', len(data), batch_size)), or "
        f"continue on {num_saved}"
    )
