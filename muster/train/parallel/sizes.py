"""The program's own request for more or fewer hosts: the control plane decides on it as on a request of its tenant."""

from __future__ import annotations

import operator
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.train.report.wire import Channel

_MOST = 1 << 31


class Sizes:
    """Requests of one run. ``nodes_range``: the fewest and the most hosts of the job; None: their number
    never changes.
    """

    def __init__(self, nodes_range: tuple[int, int] | None, channel: Channel, rank: int) -> None:
        self._range = nodes_range
        self._channel = channel
        self._rank = rank
        self._requested: int | None = None

    def ask(self, num_nodes: int) -> None:
        """Request a number from rank 0, once for each change. Raises TypeError for a value that is no whole number."""
        wanted = operator.index(num_nodes)
        if self._rank != 0 or wanted == self._requested:
            return
        self._requested = wanted
        self._channel.send("resize", num_nodes=min(max(wanted, -_MOST), _MOST - 1))  # what the wire can carry
        if why := self._why_not(wanted):
            sys.stderr.write(f"muster: the job does not continue with {wanted} hosts: {why}\n")
            sys.stderr.flush()

    def _why_not(self, wanted: int) -> str:
        if self._range is None:
            return "their number does not change here"
        fewest, most = self._range
        if fewest == most:
            return f"it has {most} and no other number (`min_nodes` or `max_nodes` make a job elastic)"
        return "" if fewest <= wanted <= most else f"it may have from {fewest} to {most}"
