"""Check whether the kernel ended the program for lack of memory: by the kernel's own counts alone."""

from __future__ import annotations

import signal

from workers.host.supervisor.cgroup.oom_counts import oom_kills

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from workers.host.supervisor.cgroup.group import Group


class MemoryKills:
    """Counts from before the start, to be compared with the counts at the end."""

    def __init__(self, group: Group, *, is_elsewhere: bool = False) -> None:
        """Read the counts. ``is_elsewhere``: the program runs in its container engine's group, and is not counted in
        ours.
        """
        self._group = group
        self._is_elsewhere = is_elsewhere
        self._before = oom_kills()

    def have_ended(self, exit_code: int | None, record: dict[str, Any]) -> bool:
        """Return whether a failed program ended for lack of memory.

        Its own group counts every kill, for its limit or for the whole host's. Without such a group, a count that rose
        in ours decides, or one on the host while a rank got SIGKILL.
        """
        if exit_code in {None, 0}:
            return False
        own = self._group.oom_kills()
        if own is not None and not self._is_elsewhere:
            return own > 0
        in_ours, on_host = [
            before is not None and after is not None and after > before
            for before, after in zip(self._before, oom_kills(), strict=True)
        ]
        was_killed = any(rank["signal"] == signal.SIGKILL for rank in record["ranks"].values())
        return in_ours or (on_host and was_killed and not record["stop_reason"])
