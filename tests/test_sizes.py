"""Sizes and rates of bytes as text: three digits, in decimal units."""

import pytest

from muster.sizes import rate_in_words, size_in_words


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "–"),
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (80_000_000_000, "80 GB"),
        (12_345 * 10**12, "12,345 TB"),
    ],
)
def test_a_size_has_three_digits_and_no_exponent(num_bytes: int | None, text: str) -> None:
    assert size_in_words(num_bytes) == text


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [
        (None, ""),
        (0.0, "0 B/s"),
        (999.0, "999 B/s"),
        (1_500.0, "1.5 kB/s"),
        (999_600_000.0, "1 GB/s"),
        (450e9, "450 GB/s"),
        (3.6e12, "3,600 GB/s"),
    ],
)
def test_a_rate_is_at_most_in_gigabytes_as_links_are(bytes_per_s: float | None, text: str) -> None:
    assert rate_in_words(bytes_per_s) == text
