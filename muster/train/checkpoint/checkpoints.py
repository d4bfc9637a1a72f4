"""Saving and loading across ranks: whole or not at all, agreed on by all, verified before anything is unpickled."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from muster.train.checkpoint import config as keeping
from muster.train.checkpoint import extras, lineage, replicas, sealing, skipped_ranges, state, volume
from muster.train.checkpoint.background_save import Saving
from muster.train.checkpoint.continuity import Continuity
from muster.train.checkpoint.extra_pieces import PIECES
from muster.train.checkpoint.fences import StaleFenceError
from muster.train.checkpoint.finite import FiniteState
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.loading import Loading
from muster.train.checkpoint.manifest import FileRecord, Manifest, file_name
from muster.train.checkpoint.own_tensors import OWN_TENSORS
from muster.train.checkpoint.parts import Parts
from muster.train.checkpoint.replicas import DIGESTS
from muster.train.checkpoint.retention_thread import RetentionWorker
from muster.train.checkpoint.save_faults import SaveFault, documents_of
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng
from muster.train.runtime.divergence import DivergedError
from muster.train.runtime.failpoints import failpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from muster.train.checkpoint.lineage import Lineage
    from muster.train.checkpoint.parts import Part
    from muster.train.checkpoint.replicas import Digests
    from muster.train.checkpoint.sealing import Sink
    from muster.train.checkpoint.state import Trained
    from muster.train.checkpoint.volume import Volume
    from muster.train.parallel.ranks import Ranks
    from muster.train.report.wire import Channel
    from muster.train.runtime.environment import Environment


@dataclass(frozen=True)
class _Facts:
    """Facts about the moment of a save, for the manifest."""

    position: int
    loss: float | None
    loss_spread: float | None
    state_bytes: int | None
    streams: dict[str, Any]


@dataclass(frozen=True)
class _Written:
    """One rank's file, and the size of the state that it was to hold."""

    file: FileRecord
    volume: Volume
    has_sharded_extras: bool
    has_own_tensors: bool


@dataclass(frozen=True)
class _Begun:
    """Result of rank 0's attempt to begin under its fence."""

    fence: int = 0
    stale: str = ""
    fault: str = ""


class Checkpoints:
    """One job's checkpoints, used by all ranks at once.

    ``save_s``: the time of the newest save, with its wait until the one before was read back; 0 before the first.
    ``read_bytes``: bytes of files that this rank read to resume. ``rng_policy``: how the ranks got their random
    numbers. ``why_failed``: why the newest save failed, the same on all ranks; empty if it was committed.
    ``is_name_taken``: it failed because the store has a generation of that name.
    ``stream_states``: returns the state of the sample streams.
    """

    def __init__(self, around: Environment, ranks: Ranks, channel: Channel, *, keep: int, made_of: Lineage) -> None:
        """Begin under this attempt's fence, on all ranks.

        Raises, on every rank:
            StaleFenceError: a newer attempt has begun.
            OSError: the folder or the store fails.
            UnfitEnvironmentError: a rank cannot use the store or the keys that its environment names.
        """
        self._around = around
        self._ranks = ranks
        self._channel = channel
        self._store, self._keyring = keeping.join(around, ranks)
        self.longest_save_s = 0.0
        self.save_s = 0.0
        self.read_bytes = 0
        self.why_failed = ""
        self.is_name_taken = False
        self.rng_policy = rng.policy(0, ranks.world_size)
        self.stream_states: Callable[[], dict[str, Any]] = dict
        self.continuity = Continuity(channel, ranks.rank)
        self._lineage = made_of
        self._parent = ""
        self._parts = Parts(ranks.rank, ranks.world_size)
        self._saving: Saving | None = None
        self._is_first = True
        self._finite: FiniteState | None = None
        self._resumed: Generation | None = None
        begun = ranks.from_first(self._begin() if ranks.rank == 0 else None)
        if begun.stale:
            raise StaleFenceError(begun.stale)
        if begun.fault:
            raise OSError(begun.fault)
        self._fence = begun.fence
        self._retention = RetentionWorker(
            self._store, channel, around.resume, around.scrub, fence=begun.fence, keep=keep
        )

    def _begin(self) -> _Begun:
        try:
            fence = self._store.begin(self._around.fence)
        except StaleFenceError as fault:
            return _Begun(stale=str(fault))
        except OSError as fault:
            return _Begun(fault=str(fault))
        return _Begun(fence)

    def save(self, trained: Trained, step: int, position: int, loss: float | None, *, is_last: bool = False) -> bool:
        """Save, and return whether it was committed. A full or failing disk on any rank stops neither training nor
        older ones.

        ``is_last``: there may be little time, so the verification of the checkpoint before is not waited for.

        Raises, on every rank:
            StaleFenceError: a newer attempt has begun.
            CoverageError: the state could not be loaded again.
            DivergedError: the state holds a value that is not finite, so nothing was saved.
        """
        started = time.monotonic()
        part = self._parts.of(trained)
        spent_s = time.monotonic() - started
        facts = self._facts(trained, position, loss)
        return self._save(part, Generation(step, self._fence), facts, spent_s, waits=not is_last)

    def make_room(self, trained: Trained) -> None:
        """Begin to allocate, in the background, the memory into which the first ``begin`` copies the state; on all
        ranks.
        """
        self._parts.make_room(trained)

    def begin(self, trained: Trained, step: int, position: int, loss: float | None) -> None:
        """Copy the state, for which training waits, and write and commit the copy in the background. No save may be in
        progress.
        """
        started = time.monotonic()
        part = self._parts.copied(trained)
        spent_s = time.monotonic() - started
        generation = Generation(step, self._fence)
        facts = self._facts(trained, position, loss)
        self._saving = Saving(step, partial(self._save, part, generation, facts, spent_s, waits=True))

    @property
    def saving(self) -> Saving | None:
        """The save that ``begin`` began, until ``result`` returns it. All ranks have begun the same."""
        return self._saving

    def result(self) -> bool:
        """Wait for the save in progress and return whether it was committed. Raises as ``save`` does, on every rank."""
        saving = self._saving
        if saving is None:
            return False
        saving.wait()
        self._saving = None
        return saving.result()

    def _facts(self, trained: Trained, position: int, loss: float | None) -> _Facts:
        """Return the facts of a save. Only the first save is compared with the state itself, later ones with the one
        before.
        """
        state_bytes = volume.of_state(trained) if self._is_first and trained.own is None else None
        return _Facts(position, loss, self.continuity.spread, state_bytes, self.stream_states())

    def _save(self, part: Part, generation: Generation, facts: _Facts, spent_s: float, *, waits: bool) -> bool:
        """Save one generation. ``spent_s``: seconds that the save has taken so far."""
        began = time.monotonic() - spent_s
        if waits:
            self._retention.settle()
        started = time.monotonic() - spent_s
        with self._retention.saving():
            try:
                faults = self._write(part, generation, facts, started)
            finally:
                if self._ranks.rank == 0:  # has no effect after a commit
                    self._store.abandon(generation)
        if not faults:  # a save that failed, perhaps on storage that hung, is no measure of a save's time
            self.longest_save_s = max(self.longest_save_s, time.monotonic() - started)
            self._is_first = False
            self._parts.num_saved += 1
        self.save_s = self.save_s if faults else time.monotonic() - began
        self.why_failed = faults[0].why if faults else ""
        self.is_name_taken = any(each.is_name_taken for each in faults)
        if faults and self._ranks.rank == 0:
            self._report_failed(generation, faults, is_last=not waits)
        return not faults

    def _report_failed(self, generation: Generation, faults: list[SaveFault], *, is_last: bool) -> None:
        self._channel.send(
            "checkpoint",
            step=generation.step,
            generation=generation.name,
            status="failed",
            why=faults[0].why,
            faults=documents_of(faults),
        )
        onward = "" if is_last else ", training continues"
        _print(f"{generation.name} was not saved{onward}: {faults[0].why}")

    def _write(self, part: Part, generation: Generation, facts: _Facts, started: float) -> list[SaveFault]:
        """Return the faults of a save, the same on all ranks; an empty list if it was committed."""
        together = self._ranks.background
        fault: SaveFault | None = together.from_first(self._prepare(generation) if self._ranks.rank == 0 else None)
        if fault is not None:
            return [fault]
        if self._ranks.rank == 0:
            self._channel.send("checkpoint", step=generation.step, generation=generation.name, status="writing")
        self._require_replicas(part)
        divided = extras.divided(part if isinstance(part, dict) else {}, together)
        part = divided if isinstance(part, dict) else part
        failpoint("save.before_files")
        found: list[_Written] = []
        faults: list[SaveFault] = []
        for written in together.gather(self._write_own(part, generation)):
            if isinstance(written, (CoverageError, DivergedError)):
                raise written
            if isinstance(written, SaveFault):
                faults.append(written)
            else:
                found.append(written)
        if faults:
            return faults
        failpoint("save.before_commit")
        fault, is_stale = together.from_first(
            self._commit(generation, found, facts, started) if self._ranks.rank == 0 else None
        )
        if fault is None:
            return []
        if is_stale:
            raise StaleFenceError(fault.why)
        return [fault]

    def _require_replicas(self, part: Part) -> None:
        """Require that what one rank writes for all is alike on all, if this save compares it. Raises CoverageError on
        every rank.
        """
        digests = part.pop(DIGESTS, None) if isinstance(part, dict) else None
        if any(self._ranks.background.max([digests is not None])):
            told: list[Digests | None] = self._ranks.background.gather(digests)
            if all(each is not None for each in told):  # else the save of a rank without a part fails anyway
                replicas.require_alike([each or {} for each in told])

    def _prepare(self, generation: Generation) -> SaveFault | None:
        try:
            self._store.prepare(generation)
        except OSError as fault:
            return SaveFault.of(0, fault, self._store.place)
        except Exception as fault:  # noqa: BLE001  # as in ``_write_own``
            return _unexpected(0, fault)
        return None

    def _write_own(self, part: Part, generation: Generation) -> _Written | SaveFault | CoverageError | DivergedError:
        if not isinstance(part, dict):
            return part
        rank = self._ranks.rank
        try:
            failpoint("save.write")
            rng.require_own(part["rng"], part["rng_sha256"], rank)
            state.require_loadable(part)
            if self._finite is not None and (why := self._finite.fault_of(part)):
                return DivergedError(
                    f"diverged before step {generation.step}, which is not saved: {why} on rank {rank}",
                    step=generation.step,
                    ranks=(rank,),
                )
            record = self._store.write_part(generation, rank, self._dump_of(part, generation))
            record = replace(record, rng_sha256=part["rng_sha256"])
            return _Written(record, volume.of_part(part), PIECES in part, OWN_TENSORS in part)
        except FileNotFoundError as fault:
            return SaveFault.own(rank, f"{fault} (is MUSTER_CHECKPOINT_DIR one folder for all hosts?)")
        except OSError as fault:
            return SaveFault.of(rank, fault, self._store.place)
        except (RuntimeError, MemoryError) as fault:
            return SaveFault.own(rank, str(fault))
        except CoverageError as fault:
            return fault
        except Exception as fault:  # noqa: BLE001  # all other ranks wait for this one's answer
            return _unexpected(rank, fault)

    def _dump_of(self, part: dict[str, Any], generation: Generation) -> Callable[[Sink], None]:
        dump = partial(state.dump, part)
        if self._keyring is None:
            return dump
        return sealing.sealed(dump, self._keyring.first, f"{generation.name}/{file_name(self._ranks.rank)}")

    def _commit(
        self, generation: Generation, written: list[_Written], facts: _Facts, started: float
    ) -> tuple[SaveFault | None, bool]:
        """Commit, and return the fault if there is one, and whether the reason is a newer attempt."""
        about = Manifest(
            step=generation.step,
            fence=generation.fence,
            attempt_id=self._around.attempt_id,
            committed_at_unix_ms=time.time_ns() // 1_000_000,
            world_size=self._ranks.world_size,
            position=facts.position,
            torch_version=torch.__version__,
            loss=facts.loss,
            loss_spread=facts.loss_spread,
            longest_save_s=max(self.longest_save_s, time.monotonic() - started),
            files=tuple(each.file for each in written),
            key_id=None if self._keyring is None else self._keyring.first.id,
            lineage=self._lineage.as_document(parent=self._parent, rng=self.rng_policy),
            has_sharded_extras=any(each.has_sharded_extras for each in written),
            has_own_tensors=any(each.has_own_tensors for each in written),
            streams=facts.streams,
        )
        try:
            failpoint("save.commit")
            digest = self._store.commit(about)
        except StaleFenceError as fault:
            return SaveFault(0, str(fault)), True
        except FileNotFoundError as fault:
            return SaveFault.own(0, str(fault)), False
        except OSError as fault:
            return SaveFault.of(0, fault, self._store.place), False
        except Exception as fault:  # noqa: BLE001  # as in ``_write_own``
            return _unexpected(0, fault), False
        failpoint("save.after_commit")
        self._channel.send(
            "checkpoint",
            step=generation.step,
            generation=generation.name,
            status="committed",
            bytes=about.num_bytes,
            seconds=round(time.monotonic() - started, 6),
            at_unix_ms=about.committed_at_unix_ms,
            manifest_sha256=digest,
            lineage=lineage.word_of(about),
            place=self._store.place.name,
        )
        self._parent = generation.name
        sizes = [file.size for file in about.files]
        volumes = [each.volume for each in written]
        self.continuity.note_saved(generation.step, sizes, volumes, facts.state_bytes)
        self._retention.verify_behind(generation)
        return None, False

    def settle(self, within_s: float | None = None) -> None:
        """Wait for the verification in progress, at most ``within_s`` seconds."""
        self._retention.settle(within_s)

    def pin(self, names: Iterable[str]) -> None:
        """Pin these generations for the control plane, and no others."""
        if self._ranks.rank == 0:
            self._retention.pin(names)

    def bar_good(self, step: int, *, trusted_step: float) -> None:
        """Require enough steps after ``step``, the newest at which a value was no usual one, before any generation is
        good. A rollback forgets those after the step that it restores. None of a step after ``trusted_step`` is good.
        """
        self._retention.barred_at = step
        self._retention.trusted_step = trusted_step

    def roll_back(self, trained: Trained, *, before: int, number: int) -> Manifest | None:
        """Restore the ``number``-th newest generation of a step before ``before``, on all ranks; the oldest if there
        are fewer. No save may be in progress. What this attempt has saved after it is removed.

        Returns its manifest, or None if there is none. Raises as ``load``.
        """
        self._retention.settle()
        choose = partial(self._retention.earlier, before=before, number=number, resumed=self._resumed)
        resume = replace(self._around.resume, not_after_unix_ms=None, may_be_newer=False)
        loading = Loading(self._store, self._ranks, self._channel, resume, self._retention, keyring=self._keyring)
        about = loading.load(trained, choose)
        self.read_bytes += loading.read_bytes
        if about is not None:
            generation = Generation(about.step, about.fence)
            self._parent = generation.name
            self.continuity.resumed(about, self._ranks.world_size)
            if self._ranks.rank == 0:
                self._retention.remove_newer(generation)
        return about

    def skipped(self) -> list[dict[str, Any]]:
        """Return, on every rank, the ranges of samples that earlier attempts skipped."""
        first = self._ranks.rank == 0
        return self._ranks.from_first(skipped_ranges.read(self._store, self._fence) if first else None)

    def keep_skipped(self, ranges: Sequence[Mapping[str, Any]]) -> None:
        """Let later attempts skip these ranges of samples too."""
        if self._ranks.rank == 0:
            skipped_ranges.write(self._store, self._fence, ranges)

    def close(self) -> None:
        """Stop reading in the background: the program ends."""
        self._retention.close()

    def load(self, trained: Trained) -> Manifest | None:
        """Restore the newest generation that verifies, on all ranks. Returns its manifest, or None if there is none.

        Raises:
            CoverageError: it verifies and yet is not this program's: another model, no optimizer.
            MissingKeyError: it is encrypted under a key that a rank does not have.
            OSError: the object store does not answer, or refuses.
        """
        self._finite = FiniteState(trained)
        loading = Loading(
            self._store, self._ranks, self._channel, self._around.resume, self._retention, keyring=self._keyring
        )
        about = loading.load(trained)
        self.read_bytes = loading.read_bytes
        if self._ranks.rank == 0:
            self._retention.begin(None if about is None else Generation(about.step, about.fence))
        if about is not None:
            self._resumed = Generation(about.step, about.fence)
            self.longest_save_s = about.longest_save_s
            self._parent = Generation(about.step, about.fence).name
            self.rng_policy = rng.policy(about.world_size, self._ranks.world_size)
            self.continuity.resumed(about, self._ranks.world_size)
            if self._ranks.rank == 0:
                self.continuity.compare(
                    about.lineage, self._lineage.as_document(parent=self._parent, rng=self.rng_policy)
                )
        return about


def _unexpected(rank: int, fault: Exception) -> SaveFault:
    """Return a fault of no known kind. It fails the save on all ranks; raised, it would end one alone."""
    return SaveFault.own(rank, f"{type(fault).__name__}: {fault}")


def _print(sentence: str) -> None:
    """Write a sentence to the job's log."""
    sys.stderr.write(f"muster.train: {sentence}\n")
