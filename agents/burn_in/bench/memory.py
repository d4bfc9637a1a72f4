"""Memory patterns: write all of it, then read all of it back, so that no cache answers for the memory."""

from typing import Final

import torch

from muster.bench.exact import Sum

PATTERNS: Final = {
    "zeros": 0,
    "ones": -1,
    "0xaa": -0x5555555555555556,
    "0x55": 0x5555555555555555,
}
"""Name → the 64-bit word."""
WORD_BYTES: Final = 8


def check(device: torch.device, num_bytes: int, chunk_bytes: int) -> list[Sum]:
    """Return how many words of each pattern read back right; last, each word holding its own address.

    Raises:
        RuntimeError: that much memory is not available. A test of less would pass for one of all.
    """
    chunks = [
        torch.empty(min(chunk_bytes, num_bytes - start) // WORD_BYTES, dtype=torch.int64, device=device)
        for start in range(0, num_bytes, chunk_bytes)
    ]
    num_words = sum(chunk.numel() for chunk in chunks)
    sums = [(f"memory {name}", num_words, _pattern(chunks, word)) for name, word in PATTERNS.items()]
    return [*sums, ("memory addresses", num_words, _addresses(chunks))]


def _pattern(chunks: list[torch.Tensor], word: int) -> int:
    """Return how many words hold ``word`` after all of them were written."""
    for chunk in chunks:
        chunk.fill_(word)
    return sum(int((chunk == word).sum()) for chunk in chunks)


def _addresses(chunks: list[torch.Tensor]) -> int:
    """Return how many words hold their own address: a decoder's fault writes one word's value to another's place."""
    starts = [0]
    for chunk in chunks:
        starts.append(starts[-1] + chunk.numel())
        torch.arange(starts[-2], starts[-1], out=chunk)
    right = 0
    for start, chunk in zip(starts, chunks, strict=False):
        wanted = torch.arange(start, start + chunk.numel(), device=chunk.device)
        right += int((chunk == wanted).sum())
    return right
