"""Orders of the launcher while the program runs: a lease that it renews, and a stop order. Both are whole files."""

from __future__ import annotations

from pathlib import Path

from workers.host.supervisor import files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class WatchedFile:
    """A JSON file that is replaced by renaming; it is read again only if it is another file than last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    def news(self) -> dict[str, Any] | None:
        """Return the document if it is new and readable."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return None
        identity = (stat.st_ino, stat.st_mtime_ns)
        if identity == self._seen:
            return None
        self._seen = identity
        return files.read_json(self._path)


class StopOrder:
    """Content of ``stop.json``, read leniently: a stop order that is partly unreadable still stops, at once."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.reason = str(document.get("reason") or "unknown")
        kill_at_ns = document.get("grace_until_boottime_ns")
        self.kill_at_ns = kill_at_ns if isinstance(kill_at_ns, int) else files.boottime_ns()
        self.is_terminating = document.get("terminate") is not False


def lease_end_ns(document: dict[str, Any]) -> int | None:
    """Return the lease's end; a lease that cannot be read renews nothing."""
    until = document.get("boottime_ns")
    return until if isinstance(until, int) and not isinstance(until, bool) else None
