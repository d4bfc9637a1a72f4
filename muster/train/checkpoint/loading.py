"""Resume from a checkpoint by all ranks together: one rank verifies each file before any rank unpickles."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from muster.train.checkpoint import exchange, lineage, sealing, state, trial
from muster.train.checkpoint.generations import Generation
from muster.train.checkpoint.keys import MissingKeyError
from muster.train.checkpoint.manifest import Manifest, UnusableError
from muster.train.checkpoint.storage.late_files import LateFiles
from muster.train.parallel.shards import CoverageError
from muster.train.runtime import rng

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.train.checkpoint.keys import Keyring
    from muster.train.checkpoint.manifest import FileRecord
    from muster.train.checkpoint.retention_thread import RetentionWorker
    from muster.train.checkpoint.state import Trained
    from muster.train.checkpoint.storage.stores import Store
    from muster.train.parallel.ranks import Ranks
    from muster.train.report.wire import Channel
    from muster.train.runtime.environment import Resume


class Loading:
    """Resume of one rank. ``read_bytes``: bytes that this rank has read of the generations that were tried."""

    def __init__(
        self,
        store: Store,
        ranks: Ranks,
        channel: Channel,
        resume: Resume,
        retention: RetentionWorker,
        *,
        keyring: Keyring | None,
    ) -> None:
        self._store = store
        self._keyring = keyring
        self._ranks = ranks
        self._channel = channel
        self._resume = resume
        self._retention = retention
        self._late = LateFiles(store.late_s)
        self._unfit = ""
        self.read_bytes = 0

    def load(self, trained: Trained, choose: Callable[[], list[Generation]] | None = None) -> Manifest | None:
        """Restore the newest generation that verifies, on all ranks. Returns its manifest, or None if there is none.

        ``choose``: returns the generations to try, in order; without it, the ones of the order to resume. A generation
        that fails before any of its content is in the model is skipped, with its reason.

        Raises:
            CoverageError: it is another program's (another model, no optimizer); or some verify, and none of them can
                be unpacked here.
            MissingKeyError: it is encrypted under a key that a rank does not have. A person has to add the key or to
                remove the checkpoint; older ones would lose work, and a start from the begin would lose all of it.
            OSError: the object store does not answer, or refuses. The checkpoint may be whole, so older ones are not
                used: the next attempt tries again.
        """
        candidates = choose or self._retention.candidates
        found, failed = self._ranks.from_first(self._candidates(candidates) if self._ranks.rank == 0 else None)
        _require_answers("the checkpoints", failed)
        for generation in found:
            read = self._read(generation)
            if read is None:
                continue
            about, contents = read
            unpacked = self._unpacked(about, contents)
            if unpacked is None:
                continue
            try:
                parts = exchange.shared_out(unpacked, about.world_size, trained, self._ranks)
            except CoverageError as refused:  # on every rank
                self._leave_out(about, str(refused))
                continue
            content = self._prepared(about, parts, trained)
            if content is None:
                continue
            if not state.restore(parts, content, trained, rank=self._ranks.rank, world_size=self._ranks.world_size):
                rng.seed_rank(about.step, self._ranks.rank)
            if self._ranks.rank == 0:
                self._report_found(about)
            return about
        if self._unfit:  # it is whole, so a start from the begin would lose all of it
            raise CoverageError(self._unfit)
        if self._ranks.rank == 0 and choose is None and (found or self._resume.generation is not None):
            _print("no generation could be used: training begins at step 0")
        return None

    def _read(self, generation: Generation) -> tuple[Manifest, dict[int, bytes | bytearray]] | None:
        """Return this rank's files, only after every rank has verified its own. None if any rank cannot use the
        generation.
        """
        about, fault, failed = self._ranks.from_first(
            self._read_manifest(generation) if self._ranks.rank == 0 else None
        )
        _require_answers(generation.name, failed)
        contents: dict[int, bytes | bytearray] = {}
        file: FileRecord | None = None
        if about is not None:
            self._require_key(about)
            try:
                for file in self._own_files(about):
                    contents[file.rank] = self._content(about, file)
                    self.read_bytes += file.size
            except UnusableError as unusable:
                fault = unusable
            except OSError as trouble:
                failed = str(trouble)
            except Exception as trouble:  # noqa: BLE001  # on one rank alone it would leave the others waiting
                fault = _unforeseen(trouble)
        told = self._ranks.gather((failed, None if fault is None else (str(fault), fault.is_damage, file)))
        _require_answers(generation.name, *(failed_there for failed_there, _ in told))
        faults = [fault_there for _, fault_there in told]
        if about is not None and not any(faults):
            self._retention.note_verified(generation)
            return about, contents
        if self._ranks.rank == 0:
            self._pass_over(generation, about, faults)
        return None

    def _require_key(self, about: Manifest) -> None:
        """Raise MissingKeyError, on every rank, if any rank lacks the key."""
        if about.key_id is None:
            return
        why = ""
        if self._keyring is None:
            why = f"key {about.key_id} is needed, and MUSTER_CHECKPOINT_KEY_FILE names no file of keys"
        else:
            try:
                self._keyring.key(about.key_id)
            except MissingKeyError as fault:
                why = str(fault)
        for rank, fault_there in enumerate(self._ranks.gather(why)):
            if fault_there:
                name = Generation(about.step, about.fence).name
                raise MissingKeyError(f"{name} is encrypted and cannot be used: rank {rank}: {fault_there}")

    def _content(self, about: Manifest, file: FileRecord) -> bytes | bytearray:
        """Return a file's decrypted content, after it was verified as saved. Raises UnusableError, or a store's
        OSError.
        """
        return self._decrypted(about, file, self._late.read(partial(self._store.verified_part, about, file)))

    def _decrypted(self, about: Manifest, file: FileRecord, content: bytes) -> bytes | bytearray:
        """Return the decrypted content. Raises UnusableError."""
        if about.key_id is None or self._keyring is None:
            return content
        place = f"{Generation(about.step, about.fence).name}/{file.name}"
        try:
            return sealing.opened(content, self._keyring.key(about.key_id), place)
        except sealing.NotOpenedError as fault:
            raise UnusableError(f"{file.name} cannot be decrypted: {fault}") from fault

    def _own_files(self, about: Manifest) -> list[FileRecord]:
        ranks = self._ranks
        return [file for file in about.files if exchange.holder_of(file.rank, ranks.world_size) == ranks.rank]

    def _unpacked(self, about: Manifest, contents: dict[int, bytes | bytearray]) -> dict[int, dict[str, Any]] | None:
        """Unpack the parts. None, on every rank, if a file cannot be unpacked, has another form or another rank's
        random numbers.
        """
        why, parts = "", {}
        try:
            for rank in list(contents):
                parts[rank] = trial.unpacked(about.files[rank], contents.pop(rank))
        except CoverageError as refused:
            why = str(refused)
        faults = self._ranks.gather(why)
        why = next(filter(None, faults), "")
        if not why:
            return parts
        self._unfit = self._unfit or why
        if self._ranks.rank == 0:
            self._pass_over(Generation(about.step, about.fence), None, [(why, False, None)])
        return None

    def _prepared(self, about: Manifest, parts: list[dict[str, Any]], trained: Trained) -> state.Prepared | None:
        """Return the content in the layout of this program's state. None, on every rank, if it does not fit on any.

        It is not reported to the control plane, since it may be the program that has changed.
        """
        why, content = "", None
        try:
            content = state.prepared(parts, trained, rank=self._ranks.rank)
        except CoverageError as refused:
            why = str(refused)
        except Exception as trouble:  # noqa: BLE001  # on one rank alone it would leave the others waiting
            why = f"{type(trouble).__name__}: {trouble}"
        why = next(filter(None, self._ranks.gather(why)), "")
        if not why:
            return content
        self._leave_out(about, why)
        return None

    def _leave_out(self, about: Manifest, why: str) -> None:
        self._unfit = self._unfit or why
        if self._ranks.rank == 0:
            generation = Generation(about.step, about.fence)
            self._retention.pass_over(generation)
            _print(f"{generation.name} is not used: {why}")

    def _candidates(self, choose: Callable[[], list[Generation]]) -> tuple[list[Generation], str]:
        """Return the generations to try, and an error text if the store does not answer."""
        try:
            return choose(), ""
        except OSError as trouble:
            return [], str(trouble)

    def _read_manifest(self, generation: Generation) -> tuple[Manifest | None, UnusableError | None, str]:
        """Return the manifest, or why it cannot be used, or an error text if the store does not answer."""
        limit = self._resume.not_after_unix_ms
        try:
            about = self._late.read(partial(self._store.read_manifest, generation))
        except UnusableError as fault:
            return None, fault, ""
        except OSError as trouble:
            return None, None, str(trouble)
        except Exception as trouble:  # noqa: BLE001  # the other ranks wait for the answer
            return None, _unforeseen(trouble), ""
        if limit is not None and about.committed_at_unix_ms > limit:
            late = UnusableError("it was committed later than this attempt may resume from", is_damage=False)
            return None, late, ""
        why = self._doubt_about(about)
        if why:
            self._report_found(about)
            return None, UnusableError(why, is_damage=False), ""
        return about, None, ""

    def _doubt_about(self, about: Manifest) -> str:
        """Return why a checkpoint is not used because of its attempt; empty if nothing is known against it."""
        if self._resume.is_tainted(about.fence, about.committed_at_unix_ms):
            return "it was committed when a fault may have falsified its attempt's results"
        if self._resume.is_overtaken(about.fence, about.committed_at_unix_ms):
            return "it was committed when a newer attempt had begun to train"
        return ""

    def _report_found(self, about: Manifest) -> None:
        """Report a checkpoint to the control plane: the attempt that committed it may have died before it
        reported it.
        """
        name = Generation(about.step, about.fence).name
        if self._resume.may_be_newer and name != self._resume.generation:
            self._channel.send(
                "checkpoint_found",
                step=about.step,
                generation=name,
                bytes=about.num_bytes,
                at_unix_ms=about.committed_at_unix_ms,
                manifest_sha256=about.file_sha256,
                lineage=lineage.word_of(about),
            )

    def _pass_over(
        self, generation: Generation, about: Manifest | None, faults: list[tuple[str, bool, FileRecord | None] | None]
    ) -> None:
        """Skip a generation. Rank 0 judges, by reading the file itself; a fault that another rank alone has is its
        host's.

        It reads that one file and no more: the other ranks wait, and reading all of a large checkpoint exceeds their
        wait.
        """
        rank, (why, is_damage, file) = next((rank, fault) for rank, fault in enumerate(faults) if fault is not None)
        self._retention.pass_over(generation)
        if rank != 0 and about is not None and file is not None:
            why, is_damage = self._own_judgement(about, file) or (f"rank {rank}: {why}", False)
        kind = "checkpoint_rejected" if is_damage else "checkpoint_unreadable"
        self._channel.send(kind, generation=generation.name, why=why)
        _print(f"{generation.name} is not used: {why}")

    def _own_judgement(self, about: Manifest, file: FileRecord) -> tuple[str, bool] | None:
        """Return the fault of a file, or None if it has none or the store does not answer. It was waited for before."""
        try:
            self._decrypted(about, file, self._store.verified_part(about, file))
        except UnusableError as fault:
            return str(fault), fault.is_damage
        except OSError:
            return None
        return None


def _unforeseen(fault: Exception) -> UnusableError:
    """Return the fault for a generation that cannot be read for any other reason: it may be whole."""
    return UnusableError(f"{type(fault).__name__}: {fault}", is_damage=False)


def _require_answers(what: str, *failed: str) -> None:
    """Raise OSError, the same on every rank, if any rank's store did not answer. ``failed``: error texts by rank."""
    for rank, why in enumerate(failed):
        if why:
            raise OSError(f"{what} cannot be read now, and training begins with nothing older: rank {rank}: {why}")


def _print(sentence: str) -> None:
    """Write a sentence to the job's log."""
    sys.stderr.write(f"muster.train: {sentence}\n")
