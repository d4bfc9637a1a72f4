"""Background work of rank 0: verify committed checkpoints, mark good ones, remove old ones, and scrub the
rest slowly.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from muster.train.checkpoint import generations, retention
from muster.train.checkpoint.manifest import UnusableError
from muster.train.checkpoint.pins import Pins
from muster.train.checkpoint.scrub import Scrub, Stopped, Throttle
from muster.train.checkpoint.storage.late_files import GivenUpError, LateFiles
from muster.train.runtime.background import BackgroundTask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from muster.train.checkpoint.generations import Generation
    from muster.train.checkpoint.scrub import ScrubRule
    from muster.train.checkpoint.storage.stores import Store
    from muster.train.report.wire import Channel
    from muster.train.runtime.environment import Resume


_LAST_PIECE_S = 1.0
"""Longest wait of a program's end for a disk or store that hangs."""
_CARRY_AGAIN_S = 5.0
"""Wait before marks that could not be made or removed are tried again."""


class RetentionWorker:
    """Background work for one job's store. Older generations are removed only after a newer one was read back equal.

    ``barred_at``: the newest step with an unusual value; only steps after it count for a good generation.
    ``trusted_step``: the last one at which compute was found alike; no generation of a later one is good.
    """

    def __init__(
        self, store: Store, channel: Channel, resume: Resume, scrub: ScrubRule, *, fence: int, keep: int
    ) -> None:
        self._store = store
        self._channel = channel
        self._resume = resume
        self._fence = fence
        self._keep = keep
        self._verified: set[Generation] = set()
        self._passed_over: set[Generation] = set()
        self._verifying: BackgroundTask[None] | None = None
        self._gone: set[Generation] = set()
        self._marking = threading.Lock()
        self._num_saving = 0
        self._stop = threading.Event()
        self._is_requested = threading.Event()
        self._pins = Pins(store, channel, resume.pinned)
        self._carry_at = float("inf")
        self._complaints: set[str] = set()
        self.barred_at = -1
        self.trusted_step = math.inf
        throttle = Throttle(scrub.bytes_per_s, self._stop, lambda: self._is_busy, self._carry_requests)
        self._scrub = Scrub(store, scrub, throttle)
        self._caring: BackgroundTask[None] | None = None

    def candidates(self) -> list[Generation]:
        """Return the generations to resume from, in order."""
        resume = self._resume
        found = self._store.list_generations()
        return generations.candidates(found, resume.generation, resume.refused, may_be_newer=resume.may_be_newer)

    def earlier(self, *, before: int, number: int, resumed: Generation | None) -> list[Generation]:
        """Return the generations to roll back to, in order: own ones of steps before ``before``, then ``resumed``,
        from which the attempt continued, and the ones before it. ``number`` 2 leaves out the newest, and so on.
        """
        own = [each for each in self._store.list_generations() if each.fence == self._fence]
        older = [] if resumed is None else [each for each in self.candidates() if each <= resumed]
        found = [each for each in dict.fromkeys([*own, *older]) if each.step < before and each not in self._passed_over]
        return found[min(number - 1, max(len(found) - 1, 0)) :]

    def remove_newer(self, generation: Generation) -> None:
        """Remove what this attempt has saved after ``generation``, which was restored. Pinned ones stay."""
        with contextlib.suppress(OSError):  # they hold finite values, so a resume from one only repeats the fault
            pinned = self._pins.pinned()
            newer = [each for each in self._store.list_generations() if each.fence == self._fence]
            gone = [each for each in newer if each.step > generation.step and each.name not in pinned]
            with self._marking:
                self._gone.update(gone)
            self._store.remove(gone)
            self._verified.difference_update(gone)
            for each in gone:
                self._channel.send("checkpoint_expired", generation=each.name)

    def note_verified(self, generation: Generation) -> None:
        self._verified.add(generation)
        self._scrub.note_read(generation)

    def pin(self, names: Iterable[str]) -> None:
        """Pin these generations for the control plane, and no others."""
        self._pins.request(names)
        self._is_requested.set()

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Pause scrubbing during a save, which needs the disk."""
        self._num_saving += 1
        try:
            yield
        finally:
            self._num_saving -= 1

    @property
    def _is_busy(self) -> bool:
        verifying = self._verifying
        return self._num_saving > 0 or (verifying is not None and verifying.is_busy)

    def begin(self, resumed: Generation | None = None) -> None:
        """Begin to carry out pins, and to read stored generations again when they are due.

        ``resumed``: the generation that all ranks together have just read as a whole.
        """
        self._caring = BackgroundTask(partial(self._care, resumed), "checkpoint-scrub")

    def close(self) -> None:
        """Stop reading: the program ends, and a scrub in progress is abandoned."""
        self._stop.set()
        self._is_requested.set()
        if self._caring is not None:
            self._caring.wait(_LAST_PIECE_S)

    def _care(self, resumed: Generation | None) -> None:
        self._is_requested.set()
        if resumed is not None:
            self._mark_read(resumed)
        while not self._stop.is_set():
            is_wished = self._is_requested.wait(min(self._scrub.pause_s, self._carry_in_s))
            self._carry_requests()
            if is_wished:
                continue
            try:
                self._scrub_one()
            except (OSError, Stopped):  # a store that does not answer is asked again later
                pass
            except Exception as fault:  # noqa: BLE001  # it ends one turn; pins and scrubs continue
                self._complain("kept checkpoints could not be read again", fault)

    @property
    def _carry_in_s(self) -> float:
        return max(0.0, self._carry_at - time.monotonic())

    def _carry_requests(self) -> None:
        """Carry out new pins, and pins that failed a while ago. It also runs between two pieces of a scrub, so it
        raises nothing.
        """
        if not self._is_requested.is_set() and self._carry_in_s > 0:
            return
        self._is_requested.clear()
        try:
            is_done = self._pins.carry()
        except Exception as fault:  # noqa: BLE001  # tried again as if the store had failed
            self._complain("pins could not be carried out", fault)
            is_done = False
        self._carry_at = float("inf") if is_done else time.monotonic() + _CARRY_AGAIN_S

    def _complain(self, what: str, fault: Exception) -> None:
        """Write a fault to the job's log, each text once: it may repeat with every turn."""
        sentence = f"muster.train: {what}: {type(fault).__name__}: {fault}\n"
        if sentence not in self._complaints:
            self._complaints.add(sentence)
            sys.stderr.write(sentence)

    def _scrub_one(self) -> None:
        generation = self._scrub.due(frozenset(each.name for each in self._passed_over) | self._resume.refused)
        if generation is None or self._stop.is_set():
            return
        try:
            fault = self._scrub.fault_of(generation)
        except Exception:
            self._scrub.note_read(generation)  # an unforeseen fault must not keep the others from their turn
            raise
        if generation in self._gone:  # removed meanwhile
            return
        if fault is None:
            self._verified.add(generation)
            self._mark_read(generation)
            self._channel.send("checkpoint_scrubbed", generation=generation.name)
        elif self._scrub.is_there(generation):  # else it was removed by others, or the store is not visible
            self._report_fault(generation, fault)

    def _mark_read(self, generation: Generation) -> None:
        """Mark a generation as read, never in a folder that is being removed. Without the mark it is read more often
        than needed.
        """
        with self._marking, contextlib.suppress(OSError):
            if generation not in self._gone:
                self._store.mark_read(generation)

    def _report_fault(self, generation: Generation, fault: UnusableError | OSError) -> None:
        """Report a fault. Damage condemns a generation; one that could not be read now may be whole and keeps its
        state.
        """
        is_damage = isinstance(fault, UnusableError) and fault.is_damage
        kind = "checkpoint_rejected" if is_damage else "checkpoint_unreadable"
        if is_damage:
            self._passed_over.add(generation)
            self._verified.discard(generation)
        self._channel.send(kind, generation=generation.name, why=str(fault))

    def pass_over(self, generation: Generation) -> None:
        """Skip a generation that could not be used when training resumed."""
        self._passed_over.add(generation)
        self._verified.discard(generation)

    def verify_behind(self, generation: Generation) -> None:
        """Verify a generation in the background, after the verification in progress."""
        earlier = self._verifying
        with self._marking:
            self._gone.discard(generation)  # a rollback removed one of this name

        def work() -> None:
            if earlier is not None:
                earlier.wait()
            self._verify(generation)

        self._verifying = BackgroundTask(work, "checkpoint-verify")

    def settle(self, within_s: float | None = None) -> None:
        """Wait for the verification in progress, at most ``within_s`` seconds."""
        verifying, self._verifying = self._verifying, None  # two threads may ask
        if verifying is not None:
            verifying.wait(within_s)

    def _verify(self, generation: Generation) -> None:
        try:
            self._verify_patiently(generation)
        except GivenUpError:  # the program ends before the result is known
            return
        except (UnusableError, OSError) as fault:
            self._passed_over.add(generation)
            self._report_fault(generation, fault)
            return
        self.note_verified(generation)
        self._channel.send("checkpoint", step=generation.step, generation=generation.name, status="verified")
        with contextlib.suppress(OSError):  # the next save tries the removal again
            self._tidy(generation.step)

    def _verify_patiently(self, generation: Generation) -> None:
        """Verify a generation. A missing file may be visible here later: all is read again only after no file is
        missing.
        """
        try:
            self._store.verify(generation)
        except UnusableError as fault:
            if not fault.is_missing:
                raise
            LateFiles(self._store.late_s, self._stop.wait).read(partial(self._store.measured, generation))
            self._store.verify(generation)

    def _tidy(self, step: int) -> None:
        pinned = self._pins.pinned()
        verified = frozenset(self._verified)  # the scrub's thread adds to it and takes from it
        for generation in verified:
            counted_from = max(generation.step, self.barred_at)
            is_trusted = generation.step <= self.trusted_step
            if generation.fence == self._fence and is_trusted and counted_from + self._resume.good_after_steps <= step:
                self._store.mark_good(generation)
        marks = retention.GenerationMarks(
            verified=frozenset(generation.name for generation in verified),
            good=self._store.good_ones(),
            aged=self._store.aged_ones(verified, self._resume.hold_s, time.time()),
            refused=self._resume.refused,
            passed_over=frozenset(generation.name for generation in self._passed_over),
            pinned=pinned,
        )
        gone = retention.to_remove(self._store.list_generations(), self._keep, marks, fence=self._fence)
        with self._marking:
            self._gone.update(gone)
        self._store.remove(gone)
        self._verified.difference_update(gone)
        for generation in gone:
            self._channel.send("checkpoint_expired", generation=generation.name)
