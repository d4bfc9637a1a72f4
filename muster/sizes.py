"""Sizes and rates of bytes as text for persons, in powers of 1,000, as disks and links are sold by."""

from typing import Final

BYTES_PER_GB: Final = 1e9
_SIZES: Final = ("B", "kB", "MB", "GB", "TB")
_RATES: Final = ("B/s", "kB/s", "MB/s", "GB/s")
_NEXT_UNIT_FROM: Final = 999.5
"""With three digits it is a thousand."""


def size_in_words(num_bytes: int | None) -> str:
    """Return a size with three digits, such as ``4.25 GB``; a dash where it is unknown."""
    return "–" if num_bytes is None else _three_digits(num_bytes, _SIZES)


def rate_in_words(bytes_per_s: float | None) -> str:
    """Return a rate with three digits, such as ``4.25 GB/s``; empty where it is unknown."""
    return "" if bytes_per_s is None else _three_digits(bytes_per_s, _RATES)


def _three_digits(value: float, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if value < _NEXT_UNIT_FROM:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.0f} {units[-1]}" if value >= _NEXT_UNIT_FROM else f"{value:.3g} {units[-1]}"
