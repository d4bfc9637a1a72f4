"""Rates of bytes as text: three digits, in the unit that matters."""

import pytest

from muster.domain.byte_rates import rate_text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (None, ""),
        (0.0, "0 B/s"),
        (999.0, "999 B/s"),
        (1_500.0, "1.5 kB/s"),
        (4_250_000_000.0, "4.25 GB/s"),
        (450e9, "450 GB/s"),
        (3.6e12, "3,600 GB/s"),
    ],
)
def test_a_rate_is_in_decimal_units(bytes_per_s: float | None, text: str) -> None:
    assert rate_text(bytes_per_s) == text
