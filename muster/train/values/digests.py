"""Digests of tensors: one number of 64 bits that depends on each bit of a tensor and on its place.

The 8-byte words of a tensor are multiplied by fixed odd numbers and added up, modulo 2^64::

    words    w0 w1 ... | w65536 ...        blocks of 65,536 words
    factors  f0 f1 ... | f0     ...        the same odd numbers in each block
    digest   MIX^1 * sum(w * f) + MIX^2 * sum(w * f) + ...

A flipped bit changes it by an odd number times a power of two, so never by 0. Two swapped elements change it, and so do
two changes that cancel each other in an XOR or in a plain sum. The device of the tensor computes it, and it is read
later: on a GPU nothing waits for it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

MASK = (1 << 64) - 1
_BLOCK = 1 << 16
_MOST_ROWS = 1 << 7
"""Blocks of 512 KiB that are multiplied at once on a GPU, where the products need as much memory again."""
_MIX = 0x9E3779B97F4A7C15
_WORD_BYTES = 8

_factors_by_device: dict[torch.device, torch.Tensor] = {}
_powers_by_device: dict[torch.device, torch.Tensor] = {}
_kinds: dict[tuple[torch.dtype, torch.Size], int] = {}


def digest_of(value: torch.Tensor) -> int:
    """Return the digest of a plain tensor's kind, shape and bits."""
    (found,) = read([begun(value)])
    return found


def begun(value: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Begin a digest. Return what is known of it, and a sum that the tensor's device computes (``read``)."""
    with torch.no_grad():
        return _kind(value), _sum(value.detach().resolve_conj().resolve_neg())


def read(pending: Sequence[tuple[int, torch.Tensor]]) -> list[int]:
    """Return the digests that were begun, with one wait for each device."""
    found = [0] * len(pending)
    by_device: dict[torch.device, list[int]] = {}
    for number, (_, total) in enumerate(pending):
        by_device.setdefault(total.device, []).append(number)
    for numbers in by_device.values():
        totals = torch.stack([pending[number][1] for number in numbers]).tolist()
        for number, total in zip(numbers, totals, strict=True):
            found[number] = (pending[number][0] + total) & MASK
    return found


def name_digest(name: str) -> int:
    """Return the digest of a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=_WORD_BYTES).digest(), "little")


def share_of(name: int, digest: int) -> int:
    """Return the share of a tensor in one digest of several, which is their sum. ``name``: the digest of its name."""
    return (name | 1) * digest & MASK


def _kind(value: torch.Tensor) -> int:
    key = (value.dtype, value.shape)
    if key not in _kinds:
        _kinds[key] = name_digest(f"{value.dtype} {tuple(value.shape)}")
    return _kinds[key]


def _sum(value: torch.Tensor) -> torch.Tensor:
    raw = value.contiguous().reshape(-1).view(torch.uint8)
    whole = raw.numel() // _WORD_BYTES * _WORD_BYTES
    words = raw[:whole]
    words = (words.clone() if words.data_ptr() % _WORD_BYTES else words).view(torch.int64)
    factors = _factors(value.device)
    rows, rest = divmod(words.numel(), _BLOCK)
    sums = []
    if rows:
        sums += _block_sums(words[: rows * _BLOCK].view(rows, _BLOCK), factors)
    if rest:
        sums.append(_product(words[rows * _BLOCK :], factors[:rest]).reshape(1))
    if raw.numel() > whole:
        padded = torch.zeros(_WORD_BYTES, dtype=torch.uint8, device=value.device)
        padded[: raw.numel() - whole] = raw[whole:]
        sums.append(padded.view(torch.int64))
    if not sums:
        return torch.zeros((), dtype=torch.int64, device=value.device)
    each = sums[0] if len(sums) == 1 else torch.cat(sums)
    return _product(each, _powers(each.numel(), value.device))


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
