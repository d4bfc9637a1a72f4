"""Statements as Parquet, for tables of millions of lines: typed columns, exact decimals, lists of attempts."""

import importlib.util
import io
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from muster.documents.bill_tables import PLAIN

PACKAGE: Final = "pyarrow"
_TIMES: Final = frozenset({"from_at", "until_at"})
_COUNTS: Final = frozenset({"num_ms", "credited_ms"})
_LISTS: Final = frozenset({"attempts", "credit_evidence"})
_DECIMALS: Final = frozenset(
    {
        *("gpu_hours", "provisional_gpu_hours", "credited_gpu_hours"),
        *("price_per_gpu_hour", "amount", "credit"),
    }
)
_DIGITS, _BEHIND_POINT = 38, 6


def can_write() -> bool:
    """Return whether the library that writes Parquet is installed."""
    return importlib.util.find_spec(PACKAGE) is not None


def parquet_of(statement: Mapping[str, Any]) -> bytes:
    """Return the lines of a statement as a file of Parquet, with the columns of its CSV.

    The file's metadata has ``month``, ``currency`` (unless no rate cards are set), ``revision`` and ``is_final``.
    Raises ImportError without pyarrow.
    """
    import pyarrow as pa  # noqa: PLC0415  # most installations have none
    from pyarrow import parquet  # noqa: PLC0415  # as above

    kinds: dict[str, Any] = {
        **dict.fromkeys(PLAIN, pa.string()),
        **dict.fromkeys(_TIMES, pa.timestamp("us", tz="UTC")),
        **dict.fromkeys(_COUNTS, pa.int64()),
        **dict.fromkeys(_LISTS, pa.list_(pa.string())),
        **dict.fromkeys(_DECIMALS, pa.decimal128(_DIGITS, _BEHIND_POINT)),
    }
    about = {name: statement[name] for name in ("month", "currency", "revision", "is_final")}
    known = {name: str(value) for name, value in about.items() if value is not None}
    schema = pa.schema([(name, kinds[name]) for name in PLAIN], metadata=known)
    rows = [{name: _typed(name, line[name]) for name in PLAIN} for line in statement["lines"]]
    written = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), written, compression="zstd")
    return written.getvalue()


def _typed(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _TIMES:
        return datetime.fromisoformat(value)
    return Decimal(value) if name in _DECIMALS else value
