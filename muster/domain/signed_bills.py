"""What the signature of a bill is about: the same bytes for the same statement, however its JSON is written."""

import json
from collections.abc import Mapping
from typing import Any, Final

FORMAT: Final = "muster-bill/1"


def signed_bytes(statement: Mapping[str, Any]) -> bytes:
    """Return the statement's bytes: JSON with its keys in order, without blanks, behind the name of the format."""
    text = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return FORMAT.encode() + b"\n" + text.encode()
