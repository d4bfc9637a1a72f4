"""What the signature of a bill is about: the same bytes for the same statement, however its JSON is written."""

import json
from collections.abc import Mapping
from typing import Any, Final

FORMAT: Final = "muster-bill/2"
"""Lines have their milliseconds, so that amounts and totals can be computed again."""
ROUNDED_FORMAT: Final = "muster-bill/1"
"""Lines have hours that are rounded: the signature alone can be verified."""
FORMATS: Final = (FORMAT, ROUNDED_FORMAT)


def signed_bytes(key_id: str, statement: Mapping[str, Any], bill_format: str = FORMAT) -> bytes:
    """Return what is signed: lines with the name of the format, the key's id and the statement.

    The statement is JSON with its keys in order and without blanks.
    """
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return f"{bill_format}\n{key_id}\n{text}".encode()
