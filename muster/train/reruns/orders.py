"""The control plane's order about re-runs, as ``MUSTER_RERUN`` holds it: JSON, all fields optional.

| field | meaning |
|---|---|
| ``step`` | this attempt re-runs the steps up to this one, on other GPUs than an earlier attempt; without it, a later attempt may be ordered to |
| ``first_bad`` | the first step that is not to be trusted |
| ``ranks`` | the ranks whose results the control plane has of the first time |
| ``num_ranks`` | the ranks of the first time; with another number nothing is run again; 0 or none: any number |
| ``is_offered`` | with ``step``: a later fault of this attempt may be run again elsewhere too |
"""  # noqa: E501  # a table's row is one line

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_ENVIRONMENT = "MUSTER_RERUN"
_MOST_STEPS = 1 << 53


@dataclass(frozen=True)
class RerunOrder:
    """``step`` None: this attempt re-runs nothing. ``is_offered``: a fault of it may be run again elsewhere."""

    step: int | None = None
    first_bad: int = 0
    ranks: tuple[int, ...] = ()
    num_ranks: int = 0
    is_offered: bool = True

    def fits(self, num_ranks: int) -> bool:
        return self.num_ranks in {0, num_ranks}

    def done(self) -> RerunOrder:
        """Return the order after its re-run: a later one may follow."""
        return RerunOrder(is_offered=self.is_offered)

    @classmethod
    def of(cls, text: str | None) -> RerunOrder | None:
        """Return the order; None without one. Raises ValueError that names the variable and the field."""
        if not text:
            return None
        document = _document(text)
        step, ranks = document.get("step"), document.get("ranks", [])
        if step is not None and not _is_count(step):
            raise ValueError(f"{_ENVIRONMENT}: step={step!r}: must be a number of steps")
        first_bad = document.get("first_bad", step or 0)
        if not _is_count(first_bad):
            raise ValueError(f"{_ENVIRONMENT}: first_bad={first_bad!r}: must be a number of steps")
        if not isinstance(ranks, list) or not all(_is_count(each) for each in ranks):
            raise ValueError(f"{_ENVIRONMENT}: ranks={ranks!r}: must be a list of ranks, which count from 0")
        num_ranks, is_offered = document.get("num_ranks", 0), document.get("is_offered", step is None)
        if not _is_count(num_ranks):
            raise ValueError(f"{_ENVIRONMENT}: num_ranks={num_ranks!r}: must be a number of ranks")
        if not isinstance(is_offered, bool):
            raise ValueError(f"{_ENVIRONMENT}: is_offered={is_offered!r}: must be true or false")  # noqa: TRY004  # as for the other fields
        return cls(step, first_bad, tuple(ranks), num_ranks, is_offered)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict):
        return document
    raise ValueError(f"{_ENVIRONMENT}={text[:200]!r}: must be a JSON object, such as {{}}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS
