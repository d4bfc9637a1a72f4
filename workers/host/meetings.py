"""Meetings before a gang's start: a launcher writes the server's orders for the part's supervisor, and reads results.

The newest answer's list counts: a meeting that it does not name any more is called off.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from muster.domain.ids import AttemptId
from muster.wire.host import AttemptPairwiseOrder
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder

MET: Final = "met.json"
MEET: Final = "meet.json"


class Meetings:
    """Meetings of a host's attempts. ``folder``: returns the folder of an attempt."""

    def __init__(self, folder: Callable[[AttemptId], AttemptFolder]) -> None:
        self._folder = folder
        self._numbers: dict[AttemptId, int] = {}

    def receive(self, waiting: Sequence[AttemptId], orders: Sequence[AttemptPairwiseOrder]) -> None:
        """Write the meetings of an answer. ``waiting``: ready parts without a go, for which the answer may order
        meetings.
        """
        ordered = {AttemptId(each.attempt_id): each.order for each in orders}
        for attempt_id in waiting:
            folder = self._folder(attempt_id)
            order = ordered.get(attempt_id)
            before, met = folder.read(MEET) or {}, folder.read(MET) or {}
            if order is not None and before.get("round") != order.round:
                folder.write_pairwise_order(msgspec.to_builtins(order))
            elif order is None and before.get("round", 0) > met.get("round", 0) and not before.get("is_called_off"):
                folder.write_pairwise_order({"round": before["round"], "is_called_off": True})
            else:
                continue
            supervisor.wake(folder.path)

    def is_news(self, attempt_id: AttemptId) -> bool:
        """Return whether a meeting has ended that was not reported since this launcher's start."""
        met = self._folder(attempt_id).read(MET)
        if met is None or self._numbers.get(attempt_id) == met.get("round"):
            return False
        self._numbers[attempt_id] = met["round"]
        return True

    def fact(self, attempt_id: AttemptId) -> dict[str, Any] | None:
        """Return the result of the newest meeting."""
        return self._folder(attempt_id).read(MET)

    def forget(self, attempt_id: AttemptId) -> None:
        self._numbers.pop(attempt_id, None)
