"""Count of the batches that a program takes from a loader over a sample stream.

Workers read ahead, so the stream's iterator is farther than the training. Torch's loaders have no public place that
reports which batch came out. So three methods of the class that all of torch's iterators have in common are
wrapped: two of them ask the sampler for its iterator, the third returns a batch. ``StatefulDataLoader`` of torchdata
uses the same three.

An iterator also draws a seed for its workers from torch's global random numbers. A resume has just restored these, and
the undisturbed run made its iterator long ago: so the first dropout after a resume would differ. Over a stream an
iterator leaves them as they are; what a worker draws depends on the batch alone (``streams.Batch``).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import BatchSampler, dataloader

from muster.train.data.streams import Draws, SampleStream

_iterators: Any = dataloader._BaseDataLoaderIter  # noqa: SLF001  # there is no public place for it
_init, _reset, _next = _iterators.__init__, _iterators._reset, _iterators.__next__  # noqa: SLF001


def count_batches() -> None:
    """Count the batches of every loader that starts to read from now on."""
    _iterators.__init__ = _init_counted
    _iterators._reset = _reset_counted  # noqa: SLF001
    _iterators.__next__ = _next_counted


def _init_counted(iterator: Any, loader: Any, *arguments: Any, **named: Any) -> None:
    _require_fit(loader)
    is_over_stream = isinstance(loader._index_sampler, SampleStream) and loader.generator is None  # noqa: SLF001
    state = torch.get_rng_state() if is_over_stream else None
    _init(iterator, loader, *arguments, **named)
    if state is not None:
        torch.set_rng_state(state)
    _leave_the_count(iterator)


def _reset_counted(iterator: Any, *arguments: Any, **named: Any) -> None:
    _reset(iterator, *arguments, **named)
    _leave_the_count(iterator)


def _next_counted(iterator: Any) -> Any:
    draws = getattr(iterator, "_sampler_iter", None)
    if not isinstance(draws, Draws):
        return _next(iterator)
    while draws.num_stale:
        _next(iterator)
        draws.drop()
    batch = _next(iterator)
    draws.count()
    return batch


def _leave_the_count(iterator: Any) -> None:
    """Let the iterator's own batches count, and not what it asks of the stream."""
    draws = iterator._sampler_iter  # noqa: SLF001
    if isinstance(draws, Draws):
        draws.is_of_loader = True


def _require_fit(loader: Any) -> None:
    """Raise ValueError if a loader would take a stream's batches in another way than one by one, in their order."""
    sampler = loader._index_sampler  # noqa: SLF001
    if isinstance(sampler, BatchSampler) and isinstance(sampler.sampler, SampleStream):
        name = sampler.sampler.name
        raise ValueError(  # noqa: TRY004  # the arguments do not fit together
            f"the stream {name} was given to a DataLoader as its sampler, and it yields whole batches: write "
            f"DataLoader(data, batch_sampler=stream), without batch_size, shuffle and drop_last"
        )
    if isinstance(sampler, SampleStream) and not getattr(loader, "in_order", True):
        raise ValueError(
            f"the stream {sampler.name} is read by a DataLoader with in_order=False, whose batches come out in an "
            "order of their own: leave in_order out, or a resume would skip some samples and repeat others"
        )
