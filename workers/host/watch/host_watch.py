"""The watch over all attempts of the control plane on this host: it reports to the server, which judges and reacts.

It has a thread of its own: stacks take seconds, and neither heartbeats nor logs may wait for them. Each attempt has its
turn in another thread, so one whose processes or files answer slowly, or never, delays no other. It reads the attempts'
folders alone, so a new host worker watches what the one before it started.
"""

import json
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from muster.domain.policy.watch import WatchPolicy
from watch.forensics.documents import to_document
from watch.forensics.newest import newest_of
from watch.progress.durations import Durations
from watch.reports import HostReport
from workers.host import supervisor
from workers.host.supervisor import files
from workers.host.watch.learnt import Learnt
from workers.host.watch.part import Part
from workers.host.watch.part_watch import Moving, PartWatch, Stalled

TURN_S: Final = 1.0
DURATIONS: Final = "durations.json"
"""File of an attempt's folder: what this watch has learnt, so that the next host worker knows it."""
KEPT_EVERY: Final = 31
"""Turns of a part from one writing of that file to the next; its loss costs some seconds of knowledge alone."""
MOST_BYTES: Final = 256 << 10
"""Of a message. The relay reads the file of messages in pieces of twice that."""
_CUTS: Final = ((64, 128, 20), (24, 32, 5), (8, 16, 0), (2, 4, 0), (1, 1, 0))
"""Most frames, collectives and lines of a rank, for the first that makes the message short enough."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HostWatch:
    """Watch over the attempts below ``state_dir``. ``run`` returns after ``stop``."""

    state_dir: Path
    _parts: dict[Path, tuple[PartWatch, Learnt]] = field(default_factory=dict)
    _num_turns: int = 0
    _failed: set[Path] = field(default_factory=set)
    _turns: dict[Path, threading.Thread] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(TURN_S):
            self.turn()

    def turn(self) -> None:
        """Look at each running attempt once, except where its last turn still lasts. Wait ``TURN_S`` at most."""
        self._num_turns += 1
        running = [
            path
            for path in (self.state_dir / "attempts").glob("att_*")
            if (path / files.IDENTITY).exists() and supervisor.adopt(path).state == "running"
        ]
        for path in set(self._parts) - set(running):
            self._parts.pop(path, None)
        for path in set(self._failed) - set(running):
            self._failed.discard(path)
        self._turns = {path: thread for path, thread in self._turns.items() if thread.is_alive()}
        begun = [path for path in running if path not in self._turns]
        for path in begun:
            self._turns[path] = threading.Thread(target=self._attend, args=(path,), name=path.name, daemon=True)
            self._turns[path].start()
        until = time.monotonic() + TURN_S
        for path in begun:
            self._turns[path].join(max(0.0, until - time.monotonic()))

    def _attend(self, path: Path) -> None:
        try:
            self._watch(path)
        except Exception as fault:  # noqa: BLE001  # one attempt's files must not end the watch over the others
            if path not in self._failed:
                self._failed.add(path)
                _log.warning("watch_failed", attempt_id=path.name, why=repr(fault))

    def _watch(self, path: Path) -> None:
        if path not in self._parts:
            part = Part.of(path)
            if part is None:
                return
            durations, policy = durations_of(path), policy_of(path)
            self._parts[path] = PartWatch(part, policy, durations), Learnt(durations, policy)
        watched, learnt = self._parts[path]
        found = watched.turn()
        is_due = self._num_turns % KEPT_EVERY == 0
        if is_due or not (path / DURATIONS).exists():
            files.replace_json(path / DURATIONS, watched.durations.document())
        if (learnt_now := learnt.news(is_due=is_due)) is not None:
            files.replace_json(path / files.LEARNT, {"durations": learnt_now})
            supervisor.wake(path)
        if found is not None and not (path / files.STOPPING).exists():
            _log.info(_event_of(found), attempt_id=path.name)
            files.write_json(path / files.STALLED, message_of(found, watched.part.node))
            supervisor.wake(path)


def _event_of(found: Stalled | Moving) -> str:
    if isinstance(found, Moving):
        return "attempt_moves"
    return "attempt_is_quiet" if found.overdue.needs_gpus else "attempt_stalled"


def durations_of(folder: Path) -> Durations:
    """Return what an attempt's watch knows: what it has learnt, else what the order says of the job's earlier ones."""
    known = files.read_json(folder / DURATIONS)
    if known is None:
        known = (files.read_json(folder / files.ORDER) or {}).get("durations")
    return Durations.of_document(known if isinstance(known, dict) else {})


def policy_of(folder: Path) -> WatchPolicy:
    """Return the policy in an attempt's order. The built-in one stands in for what an older or newer server says."""
    order = files.read_json(folder / files.ORDER) or {}
    try:
        return WatchPolicy.model_validate(order.get("watch") or {}, strict=False)
    except ValidationError:
        return WatchPolicy()


def message_of(found: Stalled | Moving, node: str) -> dict[str, Any]:
    """Return the message for the control plane (``muster.wire.training.Stalled``)."""
    if isinstance(found, Moving):
        return {"type": "stalled", "node": node, "is_over": True, "still_s": found.still_s}
    overdue = found.overdue
    return {
        "type": "stalled",
        "node": node,
        "phase": str(overdue.phase),
        "step": overdue.step,
        "still_s": overdue.still_s,
        "limit_s": overdue.limit_s,
        "ranks": list(overdue.ranks),
        "report": bounded(found.report),
    }


def bounded(report: HostReport) -> dict[str, Any] | None:
    """Return the report's document, cut to what a message may hold; None if even the shortest form is too long."""
    for num_frames, num_collectives, num_lines in _CUTS:
        ranks = tuple(
            replace(
                rank,
                stack=rank.stack[:num_frames],
                collectives=newest_of(rank.collectives, num_collectives),
                lines=rank.lines[-num_lines:] if num_lines else (),
            )
            for rank in report.ranks
        )
        document = to_document(replace(report, ranks=ranks))
        if len(json.dumps(document)) <= MOST_BYTES:
            return document
    return None
