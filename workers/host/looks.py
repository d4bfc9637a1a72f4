"""Looks at jobs before their placement: an attempt's own preparation, by a supervisor, with no GPU and no start.

A look's folder is its ledger: it stands among the attempts' from the first word on, says what was found, and goes when
the control plane lists the look no more. Killed at any point, the next launcher finds it and goes on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from muster.domain.ids import AttemptId
from muster.wire.host import LookOrder, LookReport, Order
from workers.host import supervisor
from workers.host.attempt_folder import AttemptFolder, boottime_ms
from workers.host.proof_tries import ProofTries
from workers.host.supervisor.exit_record import PROGRAM

PREFIX: Final = "look-"
_LONGEST_WHY: Final = 4_000
_MOST_REPORTS: Final = 64
_NO_PORT: Final = 0
"""Nothing of a look ever listens. A port of its own might soon be somebody else's, and no look would pass for clean."""
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
        self._open = self._found_ids()
        self._proofs: dict[str, ProofTries] = {}

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def turn(self) -> bool:
        """Whether one is over and clean since the last turn, so that it should be told."""
        over = {look_id for look_id in self._open if self._is_over(look_id) and self._is_clean(look_id)}
        self._open -= over
        return bool(over)

    def reports(self) -> tuple[LookReport, ...]:
        """Of each that is over and that the control plane may not have heard of. Not before nothing of it is left: on
        what is told the job may be placed here at once, and its attempt finds no place that is not clean.
        """
        told = ((look_id, self._folder(look_id)) for look_id in sorted(self._found_ids()))
        found = [(look_id, folder, folder.read("exit.json")) for look_id, folder in told if _has_proof(folder)]
        done = [_report(look_id, folder, record) for look_id, folder, record in found if record is not None]
        return tuple(done[:_MOST_REPORTS])

    def hear(self, orders: Sequence[LookOrder], reported: Sequence[LookReport]) -> list[AttemptFolder]:
        """What the control plane lists is looked at; what it heard of and lists no more is over. Those that are."""
        listed = {order.order.attempt_id for order in orders}
        for order in orders:
            self._begin(order)
        for look_id in self._open - listed:
            self._end_unstarted(look_id)
        return [self._folder(report.look_id) for report in reported if report.look_id not in listed]

    def _begin(self, look: LookOrder) -> None:
        look_id = look.order.attempt_id
        if not _is_look(look_id) or look.order.gpus:
            _log.warning("no_look", look_id=look_id, why="it is not named as one, or names GPUs")
            return
        folder = self._folder(look_id)
        state = supervisor.adopt(folder.path).state
        if state == "not_started":  # a launcher may have died between the order and the start
            self._write(folder, look.order, _NO_PORT, boottime_ms() + round(look.within_s * 1000))
            supervisor.spawn_supervisor(folder.path)
        if state in {"not_started", "running"}:
            self._open.add(look_id)

    def _end_unstarted(self, look_id: str) -> None:
        """Its launcher died between the order and the start, and its time is over: nobody else will ever start it."""
        folder = self._folder(look_id).path
        if supervisor.adopt(folder).state == "not_started":
            supervisor.refuse_start(folder, "it is listed no more")

    def _is_over(self, look_id: str) -> bool:
        folder = self._folder(look_id)
        state = supervisor.adopt(folder.path).state
        if state == "vanished":
            supervisor.reap_vanished(folder.path)
        return state in {"vanished", "exited"}

    def _is_clean(self, look_id: str) -> bool:
        """Its secrets and files are gone. What cannot be proved now is tried again, rarely after a while: each try may
        take seconds, in which the host does nothing else.
        """
        folder = self._folder(look_id)
        if not _has_proof(folder):
            tries = self._proofs.setdefault(look_id, ProofTries(first_ms=boottime_ms()))
            if not tries.are_due:
                return False
            if not supervisor.prove_clean(folder.path).get("clean"):
                tries.wait()
                return False
        self._proofs.pop(look_id, None)
        return True

    def _found_ids(self) -> set[str]:
        if not self._attempts.is_dir():
            return set()
        return {folder.name for folder in self._attempts.iterdir() if _is_look(folder.name)}

    def _folder(self, look_id: str) -> AttemptFolder:
        return AttemptFolder(self._state_dir, AttemptId(look_id), self._checkpoints)


def _has_proof(folder: AttemptFolder) -> bool:
    return bool((folder.read("clean.json") or {}).get("clean"))


def _is_look(name: str) -> bool:
    return name.startswith(PREFIX) and "/" not in name


def _report(look_id: str, folder: AttemptFolder, record: dict[str, Any]) -> LookReport:
    why = str(record.get("spawn_error") or "").replace("\x00", "\ufffd")[:_LONGEST_WHY]
    seen = folder.read("ready.json")
    if record.get("spawn_fault") == PROGRAM:
        return LookReport(look_id=look_id, found="unfit", why=why)
    if why or seen is None:
        return LookReport(look_id=look_id, found="unable", why=why or "its supervisor was killed as it looked")
    return LookReport(look_id=look_id, found="fit", looked_at=tuple(seen.get("looked_at", ())))
