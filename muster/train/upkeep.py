"""Beside training, on rank 0: read back what was committed, know what is good, remove what is no longer needed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from muster.train import generations, retention
from muster.train.beside import Beside
from muster.train.manifest import UnusableError

if TYPE_CHECKING:
    from muster.train.generations import Generation
    from muster.train.stores import Store
    from muster.train.surroundings import Resume
    from muster.train.wire import Channel


class Upkeep:
    """One job's store. Older generations go only once a newer one was read back equal."""

    def __init__(self, store: Store, channel: Channel, resume: Resume, *, fence: int, keep: int) -> None:
        self._store = store
        self._channel = channel
        self._resume = resume
        self._fence = fence
        self._keep = keep
        self._verified: set[Generation] = set()
        self._passed_over: set[Generation] = set()
        self._verifying: Beside[None] | None = None

    def candidates(self) -> list[Generation]:
        """Which to resume from, in order."""
        found = self._store.list_generations()
        return generations.candidates(found, self._resume.generation, self._resume.refused)

    def note_verified(self, generation: Generation) -> None:
        self._verified.add(generation)

    def pass_over(self, generation: Generation) -> None:
        """It could not be used when training resumed."""
        self._passed_over.add(generation)

    def verify_behind(self, generation: Generation) -> None:
        """Beside training, after the one under way."""
        earlier = self._verifying

        def work() -> None:
            if earlier is not None:
                earlier.wait()
            self._verify(generation)

        self._verifying = Beside(work, "checkpoint-verify")

    def settle(self, within_s: float | None = None) -> None:
        """Wait for the verification under way, so long as there is time."""
        verifying, self._verifying = self._verifying, None  # two threads may ask
        if verifying is not None:
            verifying.wait(within_s)

    def _verify(self, generation: Generation) -> None:
        try:
            self._store.verify(generation)
        except (UnusableError, OSError) as fault:
            self._passed_over.add(generation)
            is_damage = isinstance(fault, UnusableError) and fault.is_damage
            kind = "checkpoint_rejected" if is_damage else "checkpoint_unreadable"
            self._channel.say(kind, generation=generation.name, why=str(fault))
            return
        self._verified.add(generation)
        self._channel.say("checkpoint", step=generation.step, generation=generation.name, status="verified")
        with contextlib.suppress(OSError):  # what cannot be removed now is removed after the next save
            self._tidy(generation.step)

    def _tidy(self, step: int) -> None:
        for generation in self._verified:
            if generation.fence == self._fence and generation.step + self._resume.good_after_steps <= step:
                self._store.mark_good(generation)
        gone = retention.to_remove(
            self._store.list_generations(),
            self._keep,
            fence=self._fence,
            verified=frozenset(generation.name for generation in self._verified),
            good=self._store.good_ones(),
            aged=self._store.aged_ones(self._verified, self._resume.hold_s, time.time()),
            refused=self._resume.refused,
            passed_over=frozenset(generation.name for generation in self._passed_over),
        )
        self._store.remove(gone)
        self._verified.difference_update(gone)
        for generation in gone:
            self._channel.say("checkpoint_expired", generation=generation.name)
