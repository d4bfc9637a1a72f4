"""Saving and loading across ranks: all or nothing, agreed on by all, verified before anything is unpickled."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from muster.train import generations, state
from muster.train.generations import FileRecord, Generation, UnusableError
from muster.train.surroundings import StaleFenceError

if TYPE_CHECKING:
    from pathlib import Path

    from muster.train.channel import Channel
    from muster.train.ranks import Ranks
    from muster.train.surroundings import Surroundings


@dataclass
class Trained:
    """What is saved and restored as one."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: state.Stateful | None


class Checkpoints:
    """One job's checkpoints, used by all ranks at once."""

    def __init__(self, around: Surroundings, ranks: Ranks, channel: Channel, folder: Path, *, keep: int) -> None:
        """Raises StaleFenceError on every rank when a newer attempt has begun."""
        self._around = around
        self._ranks = ranks
        self._channel = channel
        self._folder = folder
        self._keep = keep
        self._verified: set[str] = set()
        self._verifying: threading.Thread | None = None
        self.longest_save_s = 0.0
        has_begun = generations.raise_fence(folder, around.fence) if ranks.rank == 0 else None
        if not ranks.from_first(has_begun):
            raise StaleFenceError(f"fence {around.fence} is older than the newest in {folder}")

    def save(self, trained: Trained, step: int, facts: dict[str, Any]) -> bool:
        """Whether it was committed. A failure on any rank leaves training and the older generations as they were."""
        started = time.monotonic()
        generation = Generation(step, self._around.fence)
        fault = self._write(trained, generation, facts)
        took_s = time.monotonic() - started
        self.longest_save_s = max(self.longest_save_s, took_s)
        if fault and self._ranks.rank == 0:
            self._channel.say("checkpoint", step=step, generation=generation.name, status="failed", why=fault[:500])
            shutil.rmtree(self._folder / f"step-{step:08d}" / f".gen-{generation.fence}.partial", ignore_errors=True)
        return not fault

    def _write(self, trained: Trained, generation: Generation, facts: dict[str, Any]) -> str:
        """What went wrong, the same on all ranks; nothing where it was committed."""
        started = time.monotonic()
        fault = ""
        if self._ranks.rank == 0:
            try:
                generations.partial_folder(self._folder, generation)
            except OSError as error:
                fault = f"rank 0: {error}"
        fault = self._ranks.from_first(fault)
        if fault:
            return fault
        fail_at("save.before_files")
        written = self._ranks.gather(self._write_own(trained, generation))
        faults = [record for record in written if isinstance(record, str)]
        if faults:
            return faults[0]
        fail_at("save.before_commit")
        if self._ranks.rank == 0:
            files = [record for record in written if isinstance(record, FileRecord)]
            fault = self._commit(generation, files, facts, started)
        return self._ranks.from_first(fault)

    def _write_own(self, trained: Trained, generation: Generation) -> FileRecord | str:
        rank, world_size = self._ranks.rank, self._ranks.world_size
        place = self._folder / f"step-{generation.step:08d}" / f".gen-{generation.fence}.partial"
        try:
            part = state.part_of(trained.model, trained.optimizer, trained.scheduler, rank=rank, world_size=world_size)
            return generations.write_file(place, f"rank-{rank:05d}.pt", part)
        except OSError as fault:
            return f"rank {rank}: {fault}"

    def _commit(self, generation: Generation, files: list[FileRecord], facts: dict[str, Any], started: float) -> str:
        about = {
            "attempt_id": self._around.attempt_id,
            "world_size": self._ranks.world_size,
            "torch": torch.__version__,
            **facts,
        }
        try:
            at_unix_ms, digest = generations.commit(self._folder, generation, files, about)
        except (OSError, UnusableError) as fault:
            return str(fault)
        told = {"step": generation.step, "generation": generation.name, "bytes": sum(file.size for file in files)}
        seconds = round(time.monotonic() - started, 6)
        self._channel.say(
            "checkpoint", **told, status="committed", seconds=seconds, at_unix_ms=at_unix_ms, manifest_sha256=digest
        )
        fail_at("save.after_commit")
        self._verify_behind(generation)
        return ""

    def _verify_behind(self, generation: Generation) -> None:
        """Read back beside training; the generations before it go only once one is known to be whole."""
        self.settle()

        def work() -> None:
            try:
                generations.verify(self._folder, generation)
            except UnusableError as fault:
                self._channel.say("checkpoint_rejected", generation=generation.name, why=str(fault))
                return
            self._verified.add(generation.name)
            self._channel.say("checkpoint", step=generation.step, generation=generation.name, status="verified")
            with contextlib.suppress(OSError):
                generations.retain(
                    self._folder, self._keep, verified=frozenset(self._verified), refused=self._around.refused
                )

        self._verifying = threading.Thread(target=work, name="checkpoint-verify", daemon=True)
        self._verifying.start()

    def settle(self) -> None:
        """Wait for the verification under way."""
        if self._verifying is not None:
            self._verifying.join()
            self._verifying = None

    def load(self, trained: Trained) -> dict[str, Any] | None:
        """Restore the newest generation that verifies, on all ranks. Its manifest, or None where there is none.

        Raises:
            CoverageError: it verifies and yet is not this program's: another model, no optimizer.
        """
        chosen = self._ranks.from_first([self._choose()] if self._ranks.rank == 0 else None)[0]
        if chosen is None:
            return None
        place = self._folder / f"step-{chosen['step']:08d}" / f"gen-{chosen['fence']}"
        parts = ((place / file["name"]).read_bytes() for file in chosen["files"])
        has_own = state.restore(parts, trained.model, trained.optimizer, trained.scheduler, rank=self._ranks.rank)
        if not has_own:
            state.seed_rank(chosen["step"], self._ranks.rank)
        return chosen

    def _choose(self) -> dict[str, Any] | None:
        found = generations.list_generations(self._folder)
        for generation in generations.candidates(found, self._around.resume_from, self._around.refused):
            try:
                manifest = generations.verify(self._folder, generation)
            except UnusableError as fault:
                self._channel.say("checkpoint_rejected", generation=generation.name, why=str(fault))
                continue
            self._verified.add(generation.name)
            return manifest
        return None


def fail_at(name: str) -> None:
    """For tests: die here as by kill -9 when ``MUSTER_TRAIN_FAILPOINT`` names this place."""
    if os.environ.get("MUSTER_TRAIN_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
