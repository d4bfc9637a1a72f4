"""Input types of tensor cores by compute capability, from ``compute_capabilities.json``, which names its source."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

_TABLE: Final = Path(__file__).with_name("compute_capabilities.json")


def dtypes_of(compute_capability: str | None) -> tuple[str, ...] | None:
    """Return the input types of its tensor cores, the widest first; None where the table does not list it."""
    found = None if compute_capability is None else _dtypes().get(compute_capability)
    return None if found is None else tuple(found)


@cache
def _dtypes() -> Mapping[str, list[str]]:
    table: Mapping[str, list[str]] = json.loads(_TABLE.read_text(encoding="utf-8"))["tensor_core_dtypes"]
    return table
