"""Plan of a run, and the folder that holds all of it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from muster.domain.errors import ConflictError
from muster.domain.ids import JobId
from muster.domain.job.spec import JobSpec
from muster.domain.lifecycle.model import Timers
from muster.domain.policy.training import CheckpointIntervalPolicy, ScrubPolicy, TrainingPolicy
from muster.domain.policy.watch import HangRule, WatchPolicy
from muster.durable import write_durably
from muster.identity import new_id
from workers.host.supervisor.lock import take_lock

ABOUT = "run.json"
CHECKPOINTS = "checkpoints"
DURATIONS = "durations.json"
MOST_DOUBLINGS = 10
_LOCK = "run.lock"


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Plan of a run. ``gpus``: UUIDs or numbers as CUDA knows them; none on a machine without. ``spare_gpus``: further
    ones of this machine, for a run that asks for another GPU. ``python``: the default one.

    ``lease_ms``: how long the program outlives a run that was killed. ``variables``: further variables for it.
    """

    spec: JobSpec
    gpus: tuple[str, ...]
    python: str
    timers: Timers
    log_limit_bytes: int
    good_after_steps: int
    hold_s: float
    lease_ms: int = 30_000
    interval: CheckpointIntervalPolicy = field(default_factory=CheckpointIntervalPolicy)
    scrub: ScrubPolicy = field(default_factory=ScrubPolicy)
    last_save_retry_s: float = TrainingPolicy().last_save_retry_s
    variables: Mapping[str, str] = field(default_factory=dict)
    watch: WatchPolicy = field(default_factory=WatchPolicy)
    spare_gpus: tuple[str, ...] = ()

    @property
    def on_hang(self) -> HangRule:
        return self.spec.on_hang or self.watch.on_hang


class RunFolder:
    """Folder of one run at a time; the next continues where the last one stopped."""

    def __init__(self, path: Path, spec: JobSpec) -> None:
        """Open it. Raises ConflictError: another run works here, or the folder holds another program's."""
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = path
        held = take_lock(path / _LOCK)
        if held is None:
            raise ConflictError(f"another `muster run` works in {path}", suggestion="Wait for it, or choose --folder.")
        self._lock = held
        about = self._read()
        self.job_id = JobId(about.get("job_id") or new_id("job"))
        self.num_attempts: int = about.get("num_attempts", 0)
        self.oom_doublings: int = about.get("oom_doublings", 0)
        self._earlier: list[dict[str, Any]] = about.get("attempts", [])
        if about and about.get("program") != _program(spec):
            self.close()
            what = " ".join(map(str, about.get("program") or ["?"]))
            raise ConflictError(
                f"{path} holds the run of {what}", suggestion="Choose another --name or --folder, or remove that one."
            )

    @property
    def checkpoints(self) -> Path:
        return self.path / CHECKPOINTS

    @property
    def durations(self) -> Path:
        """File of how long the program's phases have taken in earlier attempts and runs."""
        return self.path / DURATIONS

    def note(self, spec: JobSpec, outcome: dict[str, Any]) -> None:
        """Write the run's state, whole on disk before it is reported. Raises OSError."""
        about = {
            "schema": 1,
            "job_id": self.job_id,
            "program": _program(spec),
            "num_attempts": self.num_attempts,
            **outcome,
            "attempts": [*(each for each in self._earlier if Path(each["folder"]).is_dir()), *outcome["attempts"]],
        }
        write_durably(self.path / ABOUT, msgspec.json.format(msgspec.json.encode(about)))

    def close(self) -> None:
        os.close(self._lock)

    def _read(self) -> dict[str, Any]:
        try:
            about = msgspec.json.decode((self.path / ABOUT).read_bytes())
        except FileNotFoundError:
            return {}
        except msgspec.MsgspecError:
            about = None
        if not _is_ours(about):
            self.close()
            raise ConflictError(f"{self.path / ABOUT} is not readable", suggestion="Choose another --folder.")
        return dict(about)


def _is_ours(about: Any) -> bool:
    return (
        isinstance(about, dict)
        and isinstance(about.get("job_id"), str)
        and isinstance(about.get("num_attempts"), int)
        and about.get("oom_doublings", 0) in range(MOST_DOUBLINGS + 1)
        and isinstance(about.get("program"), list)
        and isinstance(about.get("attempts"), list)
        and all(isinstance(each, dict) and isinstance(each.get("folder"), str) for each in about["attempts"])
    )


def _program(spec: JobSpec) -> list[str]:
    """Return what distinguishes one run's checkpoints from another's.

    A script's arguments may change, as for a longer run; of a bare command it is unknown which word is its program.
    """
    return [spec.program.script] if spec.program.script is not None else list(spec.program.argv)
