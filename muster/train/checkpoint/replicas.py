"""Comparison of tensors that every rank has in whole: replicas must be alike, or one of them must not be saved for all.

A digest takes each bit of a tensor, and its place, into one number of 64 bits: its 8-byte words are multiplied by fixed
odd numbers and added up, modulo 2^64. Ranks compare the digests of their tensors by name. It is computed where the
tensors lie, on a GPU at the speed of its memory.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import extras
from muster.train.checkpoint.staging import is_plain
from muster.train.parallel.naming import ranks_in_words
from muster.train.parallel.shards import CoverageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DIGESTS = "digests"
"""Key in a rank's part, until it is written: the digests of its replicas."""
COMPARE_EVERY = 16
"""Saves from one comparison to the next; the first save of an attempt is compared."""
_BLOCK = 1 << 16
_MOST_ROWS = 1 << 7
"""Blocks of 512 KiB that are multiplied at once on a GPU, where the products need as much memory again."""
_MASK = (1 << 64) - 1
_MIX = 0x9E3779B97F4A7C15
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
    yield from dict.fromkeys(name for digests in reported for name in digests)


def _by_digest(reported: Sequence[Digests], place: int, name: str) -> list[list[int]]:
    """Return the ranks by the digest that they have. A rank without the tensor differs, if all are to have it."""
    groups: dict[int, list[int]] = {}
    for rank, digests in enumerate(reported):
        if (place, name) in digests or place < 0:
            groups.setdefault(digests.get((place, name), _ABSENT), []).append(rank)
    return list(groups.values())


def _group(value: Any) -> int:
    if isinstance(value, torch.Tensor) and is_plain(value):
        return _tensor(value)
    if isinstance(value, dict):
        found = hashlib.blake2b(digest_size=8)
        for key, inner in sorted(value.items(), key=lambda item: str(item[0])):
            found.update(f"{key}={_group(inner)};".encode())
        return int.from_bytes(found.digest(), "little")
    return int(extras.digest_of(value)[:16], 16)


def _tensor(value: torch.Tensor) -> int:
    """Return the digest of a tensor's kind, shape and bits."""
    kind = hashlib.blake2b(f"{value.dtype} {tuple(value.shape)}".encode(), digest_size=8).digest()
    with torch.no_grad():
        return (int.from_bytes(kind, "little") + _bits(value.detach().resolve_conj().resolve_neg())) & _MASK


def _bits(value: torch.Tensor) -> int:
    raw = value.contiguous().reshape(-1).view(torch.uint8)
    whole = raw.numel() // 8 * 8
    found = 0
    if raw.numel() > whole:
        rest = bytes(raw[whole:].tolist())
        found = int.from_bytes(rest, "little") * _MIX
    words = raw[:whole]
    words = words.clone() if words.data_ptr() % 8 else words
    words = words.view(torch.int64)
    rows = words.numel() // _BLOCK
    factors = _factors(min(_BLOCK, words.numel()), value.device)
    sums = list(_block_sums(words[: rows * _BLOCK].view(rows, _BLOCK), factors)) if rows else []
    if words.numel() > rows * _BLOCK:
        last = words[rows * _BLOCK :]
        sums.append((last * factors[: last.numel()]).sum().reshape(1))
    for number, total in enumerate(total for each in sums for total in each.tolist()):
        found += int(total) * pow(_MIX, number + 1, 1 << 64)
    return found & _MASK


def _block_sums(blocks: torch.Tensor, factors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the sums of all blocks' words times ``factors``. CUDA has no such product of integers by a matrix."""
    if not blocks.is_cuda:
        yield torch.mv(blocks, factors)
        return
    for first in range(0, len(blocks), _MOST_ROWS):
        yield (blocks[first : first + _MOST_ROWS] * factors).sum(1)


def _factors(number: int, device: torch.device) -> torch.Tensor:
    """Return fixed odd numbers, one for each word of a block."""
    places = torch.arange(number, dtype=torch.int64, device=device)
    mixed = (places + 1) * (_MIX - (1 << 64))
    mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
    return mixed | 1
