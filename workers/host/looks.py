"""Looks at jobs before their placement: an attempt's own preparation, by a supervisor, with no GPU and no start.

A look's folder is its ledger: it stands among the attempts' from the first word on, says what was found, and goes when
the control plane lists the look no more. Killed at any point, the next launcher finds it and goes on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from muster.domain.ids import AttemptId
from muster.ports import free_port
from muster.wire.host import LookOrder, LookReport, Order
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder, boottime_ms
from workers.host.supervisor.exit_record import PROGRAM

PREFIX: Final = "look-"
_LONGEST_WHY: Final = 4_000
_MOST_REPORTS: Final = 64
_log = structlog.get_logger(__name__)


class Looks:
    """``write``: an order into its folder, with the port and until when; the launcher knows what else belongs there."""

    def __init__(
        self, state_dir: Path, checkpoints: Path | None, write: Callable[[AttemptFolder, Order, int, int], None]
    ) -> None:
        self._attempts = state_dir / "attempts"
        self._state_dir = state_dir
        self._checkpoints = checkpoints
        self._write = write
        self._running = self._found_ids()

    @property
    def is_busy(self) -> bool:
        return bool(self._running)

    def turn(self) -> bool:
        """Whether one is over since the last turn, so that it should be told."""
        over = {look_id for look_id in self._running if self._is_over(look_id)}
        self._running -= over
        return bool(over)

    def reports(self) -> tuple[LookReport, ...]:
        """Of each that is over and that the control plane may not have heard of."""
        told = ((look_id, self._folder(look_id)) for look_id in sorted(self._found_ids()))
        found = [(look_id, folder, folder.read("exit.json")) for look_id, folder in told]
        done = [_report(look_id, folder, record) for look_id, folder, record in found if record is not None]
        return tuple(done[:_MOST_REPORTS])

    def hear(self, orders: Sequence[LookOrder], reported: Sequence[LookReport]) -> list[AttemptFolder]:
        """What the control plane lists is looked at; what it heard of and lists no more is over. Those that are."""
        listed = {order.order.attempt_id for order in orders}
        for order in orders:
            self._begin(order)
        gone = [report.look_id for report in reported if report.look_id not in listed]
        return [self._folder(look_id) for look_id in gone if self._is_clean(look_id)]

    def _begin(self, look: LookOrder) -> None:
        look_id = look.order.attempt_id
        if not _is_look(look_id) or look.order.gpus:
            _log.warning("no_look", look_id=look_id, why="it is not named as one, or names GPUs")
            return
        folder = self._folder(look_id)
        state = supervisor.adopt(folder.path).state
        if state == "not_started":  # a launcher may have died between the order and the start
            self._write(folder, look.order, free_port(), boottime_ms() + round(look.within_s * 1000))
            supervisor.spawn_supervisor(folder.path)
        if state in {"not_started", "running"}:
            self._running.add(look_id)

    def _is_over(self, look_id: str) -> bool:
        folder = self._folder(look_id)
        state = supervisor.adopt(folder.path).state
        if state == "vanished":
            supervisor.reap_vanished(folder.path)
        return state in {"vanished", "exited"}

    def _is_clean(self, look_id: str) -> bool:
        """Its secrets and files are gone; what cannot be proved now is asked for again with the next beat."""
        folder = self._folder(look_id)
        proof = folder.read("clean.json")
        if proof is None or not proof.get("clean"):
            proof = supervisor.prove_clean(folder.path)
        return bool(proof.get("clean"))

    def _found_ids(self) -> set[str]:
        if not self._attempts.is_dir():
            return set()
        return {folder.name for folder in self._attempts.iterdir() if _is_look(folder.name)}

    def _folder(self, look_id: str) -> AttemptFolder:
        return AttemptFolder(self._state_dir, AttemptId(look_id), self._checkpoints)


def _is_look(name: str) -> bool:
    return name.startswith(PREFIX) and "/" not in name


def _report(look_id: str, folder: AttemptFolder, record: dict[str, Any]) -> LookReport:
    why = str(record.get("spawn_error") or "")[:_LONGEST_WHY]
    seen = folder.read("ready.json")
    if record.get("spawn_fault") == PROGRAM:
        return LookReport(look_id=look_id, found="unfit", why=why)
    if why or seen is None:
        return LookReport(look_id=look_id, found="unable", why=why or "its supervisor was killed as it looked")
    return LookReport(look_id=look_id, found="fit", looked_at=tuple(seen.get("looked_at", ())))
