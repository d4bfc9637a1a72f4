"""Amounts of money for GPU time. Milliseconds are summed as whole numbers; an amount is rounded once, for a line."""

from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from typing import Final

MS_PER_HOUR: Final = 3_600_000
_PRICE_DIGITS: Final = 6
_AMPLE: Final = Context(prec=400)
"""More digits than the largest double has: the default of 28 refuses to round a longer result."""


def amount(num_ms: int, price: Decimal, decimals: int) -> Decimal:
    """Return what ``num_ms`` cost at a price an hour, rounded half away from zero to so many decimals.

    It is computed in whole numbers, so it is exact before the one rounding.
    """
    units = int(price.scaleb(_PRICE_DIGITS))
    if Decimal(units).scaleb(-_PRICE_DIGITS) != price:
        raise ValueError(f"the price {price} has more than {_PRICE_DIGITS} decimals")
    whole, rest = divmod(abs(num_ms * units) * 10**decimals, MS_PER_HOUR * 10**_PRICE_DIGITS)
    if 2 * rest >= MS_PER_HOUR * 10**_PRICE_DIGITS:
        whole += 1
    return Decimal(whole if num_ms * units >= 0 else -whole).scaleb(-decimals)


def total(amounts: Iterable[Decimal], decimals: int) -> Decimal:
    """Return the sum of rounded amounts, which is exact: a bill adds up as it is printed."""
    return sum(amounts, Decimal(0).scaleb(-decimals))


def quotient(dividend: Decimal, divisor: Decimal | float, decimals: int) -> Decimal:
    """Return an amount by a number other than 0, to so many decimals, however many digits the result has."""
    with localcontext(_AMPLE):
        return (dividend / Decimal(str(divisor))).quantize(Decimal(1).scaleb(-decimals))


def gpu_hours(num_ms: int) -> Decimal:
    """Return GPU-hours to six decimals, for display and export: nothing is charged by them."""
    return (Decimal(num_ms) / MS_PER_HOUR).quantize(Decimal("0.000001"))
