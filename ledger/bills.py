"""Lines of a bill: time of one job, model, tier and account at one price, with what of it is given back."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from ledger.accounts import Account
from muster.domain.amounts import amount, quotient, total

EXACT_DECIMALS: Final = 9
LEAST_EPOCHS: Final = 0.001


class LineKey(NamedTuple):
    """What the time of a line has in common. ``from_at``: since when its price holds, within the bill's time."""

    tenant_id: str
    job_id: str
    model: str
    tier: str
    from_at: datetime
    account: Account


@dataclass(frozen=True, slots=True)
class Line:
    """``price``: of an hour of a GPU; None: unpriced, no card held then. ``credited_ms``: given back of ``num_ms``.

    ``provisional_ms``: of hours about which reports may still come. ``until_at``: the end of its own time: no other
    line of its job, model, tier and account has time before that. ``grounds``: the evidence by which time is given
    back.
    """

    key: LineKey
    price: Decimal | None
    num_ms: int
    credited_ms: int
    provisional_ms: int
    until_at: datetime
    grounds: tuple[str, ...] = ()

    def amount(self, decimals: int) -> Decimal | None:
        return None if self.price is None else amount(self.num_ms, self.price, decimals)

    def credit(self, decimals: int) -> Decimal | None:
        """Return what is given back, as a negative amount."""
        return None if self.price is None else -amount(self.credited_ms, self.price, decimals)


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of lines. ``charged``: before credits. ``due``: after them."""

    charged: Decimal
    credits: Decimal
    num_ms: int
    credited_ms: int
    provisional_ms: int
    unpriced_ms: int

    @property
    def due(self) -> Decimal:
        return self.charged + self.credits


def sums(lines: Sequence[Line], decimals: int) -> Sums:
    return Sums(
        charged=total(_known(line.amount(decimals) for line in lines), decimals),
        credits=total(_known(line.credit(decimals) for line in lines), decimals),
        num_ms=sum(line.num_ms for line in lines),
        credited_ms=sum(line.credited_ms for line in lines),
        provisional_ms=sum(line.provisional_ms for line in lines),
        unpriced_ms=sum(line.num_ms for line in lines if line.price is None),
    )


def exactly_charged(lines: Sequence[Line]) -> Decimal | None:
    """Return what lines cost before credits, to 9 decimals; None: a part of their time has no price."""
    return _exactly(lines, lambda line: line.num_ms)


def exactly_spent(lines: Sequence[Line]) -> Decimal | None:
    """Return what lines cost after credits, to 9 decimals; None: a part of their time has no price.

    A line of a bill is rounded, which would be most of what a short job costs.
    """
    return _exactly(lines, lambda line: line.num_ms - line.credited_ms)


def epoch_cost(spent: Decimal | None, num_epochs: float | None) -> Decimal | None:
    """Return what an epoch cost; None also for less than a thousandth of one, which is too little to judge by."""
    if spent is None or num_epochs is None or num_epochs < LEAST_EPOCHS:
        return None
    return quotient(spent, num_epochs, EXACT_DECIMALS)


def sums_by(lines: Iterable[Line], group: Callable[[LineKey], str], decimals: int) -> list[tuple[str, Sums]]:
    """Return the sums of lines by group, the dearest first."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(group(line.key), []).append(line)
    every = [(name, sums(own, decimals)) for name, own in found.items()]
    return sorted(every, key=lambda one: (-one[1].due, -one[1].num_ms, one[0]))


def forecast(due: Decimal, elapsed_s: float, whole_s: float, decimals: int) -> Decimal | None:
    """Return what is due at the end, if it continues at the mean rate so far; None: no time has passed."""
    if elapsed_s <= 0:
        return None
    return quotient(due * Decimal(whole_s), min(elapsed_s, whole_s), decimals)


def _exactly(lines: Sequence[Line], num_ms: Callable[[Line], int]) -> Decimal | None:
    amounts = [None if line.price is None else amount(num_ms(line), line.price, EXACT_DECIMALS) for line in lines]
    known = _known(amounts)
    return sum(known, Decimal(0)) if len(known) == len(amounts) else None


def _known(amounts: Iterable[Decimal | None]) -> list[Decimal]:
    return [each for each in amounts if each is not None]
