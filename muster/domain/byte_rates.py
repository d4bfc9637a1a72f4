"""Rates of bytes as people read them, in decimal units as links are sold by."""

from typing import Final

_RATE_STEPS: Final = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def rate_text(bytes_per_s: float | None) -> str:
    """Return a rate with three digits, such as ``4.25 GB/s``; empty where it is unknown."""
    if bytes_per_s is None:
        return ""
    factor, unit = next((one for one in _RATE_STEPS if bytes_per_s >= one[0]), (1.0, "B/s"))
    value = bytes_per_s / factor
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
