"""Comparison of tensors that every rank has in whole: replicas must be alike, or one of them must not be saved for all.

Ranks compare the digests of their tensors by name (``values.digests``). Copies that are known to be alike are compared
before each save and between saves too (``values.replica_check``); this comparison is for all others.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import extras
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.naming import ranks_in_words
from muster.train.parallel.shards import CoverageError
from muster.train.values import digests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DIGESTS = "digests"
"""Key in a rank's part, until it is written: the digests of its replicas."""
COMPARE_EVERY = 16
"""Saves from one comparison to the next; the first save of an attempt is compared."""
_MOST_NAMED = 3
_ABSENT = 0

Digests = dict[tuple[int, str], int]
"""By place (-1: all ranks have the tensor) and name."""


def digests_of(groups: Mapping[tuple[int, str], Any]) -> Digests:
    """Return the digest of each group: a tensor, or one parameter's state in the optimizer."""
    return {name: _group(group) for name, group in groups.items()}


def require_alike(reported: Sequence[Digests]) -> None:
    """Require that all ranks of a place have one digest by each name. ``reported``: the digests of all ranks.

    Raises:
        CoverageError: some differ; it names tensors and ranks.
    """
    unlike = {name: ranks for name in _names(reported) if len(ranks := _by_digest(reported, *name)) > 1}
    if not unlike:
        return
    listed = [
        f"{name}: {' unlike '.join(ranks_in_words(ranks) for ranks in groups)}"
        for (_, name), groups in list(unlike.items())[:_MOST_NAMED]
    ]
    more = f" and {len(unlike) - _MOST_NAMED:,} more" if len(unlike) > _MOST_NAMED else ""
    if any(place >= 0 for place, _ in unlike):
        raise CoverageError(
            f"not saved: ranks at one place of own_mesh differ in {'; '.join(listed)}{more}. Name the mesh along which "
            "they differ, or leave own_mesh out, so that each rank saves its own"
        )
    raise CoverageError(
        f"not saved: one rank's values would be saved for all, and ranks differ in {'; '.join(listed)}{more}. If "
        "these are each rank's own, such as a pipeline's stage or experts, declare them: train.start(..., own=[names], "
        "data_parallel=False). If they are to be alike, the ranks have drifted apart"
    )


def _names(reported: Sequence[Digests]) -> Iterator[tuple[int, str]]:
    yield from dict.fromkeys(name for digests_there in reported for name in digests_there)


def _by_digest(reported: Sequence[Digests], place: int, name: str) -> list[list[int]]:
    """Return the ranks by the digest that they have. A rank without the tensor differs, if all are to have it."""
    groups: dict[int, list[int]] = {}
    for rank, told in enumerate(reported):
        if (place, name) in told or place < 0:
            groups.setdefault(told.get((place, name), _ABSENT), []).append(rank)
    return list(groups.values())


def _group(value: Any) -> int:
    if isinstance(value, torch.Tensor) and is_plain(value):
        return digests.digest_of(value)
    if isinstance(value, dict):
        found = hashlib.blake2b(digest_size=8)
        for key, inner in sorted(value.items(), key=lambda item: str(item[0])):
            found.update(f"{key}={_group(inner)};".encode())
        return int.from_bytes(found.digest(), "little")
    return int(extras.digest_of(value)[:16], 16)
