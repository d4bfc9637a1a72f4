"""Whether this process computes the same bits each time: torch's repeatable algorithms, and no operation without one.

By default torch only warns of an operation without a repeatable form. Programs often ignore warnings, so the message is
read where Python tests its filters, and a filter that hides it leaves the answer at no.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

_MESSAGE = "does not have a deterministic implementation"


class _Reader:
    """It stands for the pattern of a filter, matches no message, and notes the one of torch."""

    def __init__(self) -> None:
        self.has_met = False

    def match(self, text: str) -> None:
        self.has_met |= _MESSAGE in text


class Repeatable:
    """The answer for this process. Make it before the first step."""

    def __init__(self) -> None:
        self._reader = _Reader()
        self._filter: Any = ("default", self._reader, Warning, None, 0)
        warnings.filters.insert(0, self._filter)  # type: ignore[attr-defined]  # a list, as its C code has it
        warnings._filters_mutated()  # type: ignore[attr-defined]  # noqa: SLF001  # else a message met once is no more tested

    def __bool__(self) -> bool:
        if not torch.are_deterministic_algorithms_enabled():
            return False
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            return True
        return not self._reader.has_met and self._reads_all()

    def _reads_all(self) -> bool:
        """Return whether no filter that may fit torch's message comes first: it would hide it from the reader."""
        for each in warnings.filters:
            if each is self._filter:
                return True
            if issubclass(UserWarning, each[2]) and not isinstance(each[1], _Reader):
                return False
        return False
