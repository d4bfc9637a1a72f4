"""Does a bill add up? Each amount is computed again from milliseconds and price, each total from the lines.

Anyone can write a bundle, and a valid signature does not prove that the bill is right. So a value of another form is a
fault like a wrong sum.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from muster.domain.amounts import amount, gpu_hours, total
from muster.domain.rates import MOST_DECIMALS, PRICE

_AMOUNT: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,6})?")
_MOST_MS: Final = 2**63
_LINE_NAMES: Final = ("job_id", "model", "tier", "account", "from_at")
"""Fields by which a line is named."""
_HOURS: Final = {
    "gpu_hours": "num_ms",
    "credited_gpu_hours": "credited_ms",
    "provisional_gpu_hours": "provisional_ms",
}


class UnfitBillError(Exception):
    """A value has another form than a bill's."""


def fault_of_bill(statement: Mapping[str, Any]) -> str:
    """Return the first line or total that does not add up; empty: all do."""
    try:
        decimals = statement.get("decimals")
        if type(decimals) is not int or not 0 <= decimals <= MOST_DECIMALS:
            return f"its decimals are {decimals!r}, and not 0 to {MOST_DECIMALS}"
        lines = statement.get("lines")
        if not isinstance(lines, list):
            return "it has no lines"
        for number, line in enumerate(lines, 1):
            fault = _form_or_fault(line, decimals)
            if fault:
                return f"line {number}{_words(line)}: {fault}"
        return _fault_of_totals(statement.get("sums"), lines, decimals)
    except UnfitBillError as fault:
        return str(fault)


def _words(line: Any) -> str:
    parts = [line.get(name) for name in _LINE_NAMES] if isinstance(line, dict) else []
    named = ", ".join(str(part)[:128] for part in parts if part)
    return f" ({named})" if named else ""


def _form_or_fault(line: Any, decimals: int) -> str:
    """Return the fault of a line, also of its form; empty: it has none."""
    try:
        return _fault_of_line(line, decimals)
    except UnfitBillError as fault:
        return str(fault)


def _fault_of_line(line: Any, decimals: int) -> str:
    if not isinstance(line, dict):
        raise UnfitBillError("it is no object with fields")
    for hours, name in _HOURS.items():
        num_ms = _milliseconds(line, name)
        if _number(line, hours) != gpu_hours(num_ms):
            return f"its {name} of {num_ms:,} are {gpu_hours(num_ms)} {hours}, not {line[hours]}"
    if line.get("price_per_gpu_hour") is None:
        is_free_of_amounts = line.get("amount") is None and line.get("credit") is None
        return "" if is_free_of_amounts else "it has an amount, and no price"
    price = _price(line)
    for name, num_ms, sign in (("amount", line["num_ms"], 1), ("credit", line["credited_ms"], -1)):
        computed = sign * amount(num_ms, price, decimals)
        if _number(line, name) != computed:
            return f"{num_ms:,} ms at {price} an hour are {_plain(computed)} as its {name}, not {line[name]}"
    return ""


def _fault_of_totals(sums: Any, lines: Sequence[Mapping[str, Any]], decimals: int) -> str:
    if not isinstance(sums, dict):
        raise UnfitBillError("it has no sums")
    priced = [line for line in lines if line.get("amount") is not None]
    charged = total((Decimal(line["amount"]) for line in priced), decimals)
    credits_ = total((Decimal(line["credit"]) for line in priced), decimals)
    unpriced_ms = sum(line["num_ms"] for line in lines if line.get("amount") is None)
    computed = {
        "charged": charged,
        "credits": credits_,
        "due": charged + credits_,
        "unpriced_gpu_hours": gpu_hours(unpriced_ms),
        **{hours: gpu_hours(sum(line[name] for line in lines)) for hours, name in _HOURS.items()},
    }
    wrong = _first_wrong(sums, computed.items())
    return "" if wrong is None else f"the lines add up to {_plain(computed[wrong])} {wrong}, not {sums[wrong]}"


def _first_wrong(sums: Mapping[str, Any], computed: Iterable[tuple[str, Decimal]]) -> str | None:
    return next((name for name, value in computed if _number(sums, name) != value), None)


def _milliseconds(line: Mapping[str, Any], name: str) -> int:
    found = line.get(name)
    if type(found) is not int or abs(found) >= _MOST_MS:
        raise UnfitBillError(f"{name} is no number of milliseconds: {found!r:.80}")
    return found


def _price(line: Mapping[str, Any]) -> Decimal:
    found = line["price_per_gpu_hour"]
    if not isinstance(found, str) or not PRICE.fullmatch(found):
        raise UnfitBillError(f"price_per_gpu_hour is no price: {found!r:.80}")
    return Decimal(found)


def _number(holder: Mapping[str, Any], name: str) -> Decimal:
    found = holder.get(name)
    if not isinstance(found, str) or not _AMOUNT.fullmatch(found):
        raise UnfitBillError(f"{name} is no number of a bill: {found!r:.80}")
    return Decimal(found)


def _plain(number: Decimal) -> str:
    return f"{number:f}"
