"""Digests of tensors: one number of 64 bits that depends on each bit of a tensor and on its place.

The 8-byte words of a tensor are multiplied by fixed odd numbers and added up, modulo 2^64::

    words    w0 w1 ... | w65536 ...        blocks of 65,536 words
    factors  f0 f1 ... | f0     ...        the same odd numbers in each block
    digest   MIX^1 * sum(w * f) + MIX^2 * sum(w * f) + ...

A flipped bit changes it by an odd number times a power of two, so never by 0. Two swapped elements change it, and so do
two changes that cancel each other in an XOR or in a plain sum. The device of the tensor computes it, and it is read
later: on a GPU nothing waits for it.

A call of torch costs as much as some thousand products, and a model has hundreds of small tensors. So tensors of one
kind and shape are copied side by side and multiplied at once.
"""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MASK = (1 << 64) - 1
_BLOCK = 1 << 16
_MOST_ROWS = 1 << 7
"""Blocks of 512 KiB that are multiplied at once on a GPU, where the products need as much memory again."""
_SMALL_BYTES = 1 << 15
"""Tensors below this size are copied side by side: above it, a copy costs more than a product of its own."""
_TOGETHER_BYTES = 1 << 20
"""Bytes of such a copy: they are multiplied while they are in a processor's cache."""
_MIX = 0x9E3779B97F4A7C15
_WORD_BYTES = 8

_factors_by_device: dict[torch.device, torch.Tensor] = {}
_first_factors_by_device: dict[torch.device, torch.Tensor] = {}
_powers_by_device: dict[torch.device, torch.Tensor] = {}
_kinds: dict[tuple[torch.dtype, torch.Size], int] = {}


class Begun:
    """Digests that were begun. ``kinds``: what is known of each; ``sums``: what devices compute, with its places."""

    __slots__ = ("kinds", "sums")

    def __init__(self, kinds: list[int], sums: list[tuple[Sequence[int], torch.Tensor]]) -> None:
        self.kinds, self.sums = kinds, sums


def digest_of(value: torch.Tensor) -> int:
    """Return the digest of a plain tensor's kind, shape and bits."""
    (found,) = read([begun([value])])
    return found


def begun(values: Sequence[torch.Tensor]) -> Begun:
    """Begin the digests of some plain tensors, which their devices compute (``read``)."""
    alike: dict[tuple[torch.dtype, torch.Size, torch.device], list[int]] = {}
    for place, value in enumerate(values):
        alike.setdefault((value.dtype, value.shape, value.device), []).append(place)
    found = Begun([0] * len(values), [])
    alone: dict[torch.device, list[int]] = {}
    with torch.no_grad():
        for (dtype, shape, device), places in alike.items():
            kind, value = _kind(dtype, shape), values[places[0]]
            for place in places:
                found.kinds[place] = kind
            if len(places) == 1 or dtype.is_complex or not 0 < value.nbytes < _SMALL_BYTES:
                alone.setdefault(device, []).extend(places)
                continue
            for some in _cut(places, _TOGETHER_BYTES // value.nbytes):
                found.sums.append((some, _sums_together([values[place] for place in some])))
        for places in alone.values():
            found.sums.append((places, torch.stack([_sum(values[place]) for place in places])))
    return found


def _cut(places: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    return (places[first : first + size] for first in range(0, len(places), size))


def read(pending: Iterable[Begun]) -> list[int]:
    """Return the digests that were begun, in order, with one wait for each device."""
    found: list[int] = []
    by_device: dict[torch.device, list[tuple[Sequence[int], torch.Tensor]]] = {}
    for each in pending:
        for places, sums in each.sums:
            by_device.setdefault(sums.device, []).append(([len(found) + place for place in places], sums))
        found += each.kinds
    for parts in by_device.values():
        totals = torch.cat([sums for _, sums in parts]).tolist()
        for place, total in zip(chain.from_iterable(places for places, _ in parts), totals, strict=True):
            found[place] = (found[place] + total) & MASK
    return found


def name_digest(name: str) -> int:
    """Return the digest of a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=_WORD_BYTES).digest(), "little")


def share_of(name: int, digest: int) -> int:
    """Return the share of a tensor in one digest of several, which is their sum. ``name``: the digest of its name."""
    return (name | 1) * digest & MASK


def _kind(dtype: torch.dtype, shape: torch.Size) -> int:
    key = (dtype, shape)
    if key not in _kinds:
        _kinds[key] = name_digest(f"{dtype} {tuple(shape)}")
    return _kinds[key]


def _sums_together(values: list[torch.Tensor]) -> torch.Tensor:
    """Return what ``_sum`` returns of each of some small tensors of one kind and shape."""
    rows = torch.stack(values).contiguous().view(len(values), -1)  # in the order of indices, as ``_sum`` reads each
    whole, rest = divmod(values[0].nbytes, _WORD_BYTES)
    factors = _first_factors(rows.device)[:whole]
    if rest:
        padded = torch.zeros(len(values), (whole + 1) * _WORD_BYTES, dtype=torch.uint8, device=rows.device)
        padded[:, : values[0].nbytes] = rows.view(torch.uint8)
        rows, last = padded, _powers(2, rows.device)[min(whole, 1)]
        factors = torch.cat((factors, last.reshape(1)))
    words = rows.view(torch.int64)
    return (words * factors).sum(1) if words.is_cuda else torch.mv(words, factors)


def _sum(value: torch.Tensor) -> torch.Tensor:
    flat = value.resolve_conj().resolve_neg().contiguous().view(-1)
    whole, rest = divmod(value.nbytes, _WORD_BYTES)
    if rest == 0 and 0 < whole <= _BLOCK and flat.data_ptr() % _WORD_BYTES == 0:
        return _product(flat.view(torch.int64), _first_factors(value.device)[:whole])
    return _sum_of_blocks(flat.view(torch.uint8), whole * _WORD_BYTES)


def _sum_of_blocks(raw: torch.Tensor, whole: int) -> torch.Tensor:
    """Return the sum of bytes at any address. ``whole``: those in whole words."""
    words = raw[:whole]
    words = (words.clone() if words.data_ptr() % _WORD_BYTES else words).view(torch.int64)
    factors = _factors(raw.device)
    rows, rest = divmod(words.numel(), _BLOCK)
    sums = []
    if rows:
        sums += _block_sums(words[: rows * _BLOCK].view(rows, _BLOCK), factors)
    if rest:
        sums.append(_product(words[rows * _BLOCK :], factors[:rest]).reshape(1))
    if raw.numel() > whole:
        padded = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=raw.device)
        padded[: raw.numel() - whole] = raw[whole:]
        sums.append(padded.view(torch.int64))
    if not sums:
        return torch.zeros((), dtype=torch.int64, device=raw.device)
    each = sums[0] if len(sums) == 1 else torch.cat(sums)
    return _product(each, _powers(each.numel(), raw.device))


def _block_sums(blocks: torch.Tensor, factors: torch.Tensor) -> list[torch.Tensor]:
    """Return the sums of all blocks' words times ``factors``. CUDA has no such product of integers by a matrix."""
    if not blocks.is_cuda:
        return [torch.mv(blocks, factors)]
    return [(blocks[first : first + _MOST_ROWS] * factors).sum(1) for first in range(0, len(blocks), _MOST_ROWS)]


def _product(words: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    return (words * factors).sum() if words.is_cuda else torch.dot(words, factors)


def _factors(device: torch.device) -> torch.Tensor:
    """Return fixed odd numbers, one for each word of a block."""
    if device not in _factors_by_device:
        places = torch.arange(_BLOCK, dtype=torch.int64, device=device)
        mixed = (places + 1) * (_MIX - (1 << 64))
        mixed = (mixed ^ (mixed >> 29)) * -4658895280553007687
        _factors_by_device[device] = mixed | 1
    return _factors_by_device[device]


def _first_factors(device: torch.device) -> torch.Tensor:
    """Return the factors of the first block, times the number by which its sum is multiplied."""
    if device not in _first_factors_by_device:
        _first_factors_by_device[device] = _factors(device) * _powers(1, device)
    return _first_factors_by_device[device]


def _powers(number: int, device: torch.device) -> torch.Tensor:
    """Return the powers of a fixed odd number, one for each block of a tensor."""
    known = _powers_by_device.get(device)
    if known is None or known.numel() < number:
        power, made = 1, []
        for _ in range(max(64, 2 * number)):
            power = power * _MIX & MASK
            made.append(power - (1 << 64) if power >> 63 else power)
        known = _powers_by_device[device] = torch.tensor(made, dtype=torch.int64, device=device)
    return known[:number]
