"""A host's exit record: what its supervisor saw of its part of an attempt, as the wire and the disk have it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SAVE_FAILED: Final = 74
STOPPED_ON_REQUEST: Final = frozenset({75, 76})
"""Exit codes of ``muster.train`` after a stop request, with and without a checkpoint."""
CORRUPTION_CODE: Final = 16
CORRUPTION: Final = "corruption"
"""Outcome of ``muster.train`` whose copies differ, or whose fault came again in a re-run."""
DIVERGED: Final = "diverged"
"""Outcome of ``muster.train`` whose values are not finite."""
_OUTCOME_CODES: Final[Mapping[str, int]] = {
    CORRUPTION: CORRUPTION_CODE,
    DIVERGED: 17,
    "save_failed": SAVE_FAILED,
    "stopped_with_checkpoint": 75,
    "stopped_without": 76,
    "superseded": 93,
}
"""Exit code by the outcome that ``muster.train`` reports. Other outcomes leave the end to the exit code."""
_RUNTIMES_OWN: Final = frozenset({SAVE_FAILED, *STOPPED_ON_REQUEST})
"""Codes that mean an end by ``muster.train`` only if its outcome states it: to ``sysexits.h``, which many programs
follow, they are EX_IOERR, EX_TEMPFAIL and EX_PROTOCOL."""
_RUNTIMES_LINES: Final = "muster.train: "


@dataclass(frozen=True, slots=True)
class RankExit:
    """Exit code or signal of one rank; neither is known where it never ran or vanished with its supervisor.

    ``outcome``: what ``muster.train`` in the rank's program reported of its end, ``none`` if it reported nothing; None
    where the supervisor does not say, as that of 0.1.0 does not.
    """

    exit_code: int | None = None
    signal: int | None = None
    ended_at_ms: int | None = None
    error_excerpt: str | None = None
    outcome: str | None = None

    @property
    def has_failed(self) -> bool:
        return self.signal is not None or (self.code is not None and self.code != 0)

    @property
    def has_succeeded(self) -> bool:
        return self.code == 0 and self.signal is None

    @property
    def code(self) -> int | None:
        """The exit code; that of the outcome where the program ended with 0 after ``muster.train`` had ended it."""
        return _OUTCOME_CODES.get(self.outcome or "", 0) if self.exit_code == 0 else self.exit_code

    @property
    def meant_code(self) -> int | None:
        """The code, if it means what ``muster.train`` or a convention of all programs says by it; else None."""
        if self.code not in _RUNTIMES_OWN or self.code == _OUTCOME_CODES.get(self.outcome or ""):
            return self.code
        if self.outcome is not None:
            return None
        # An older supervisor reads no outcome. A failed save has a line of its own in the log.
        is_known = self.code in STOPPED_ON_REQUEST or _RUNTIMES_LINES in (self.error_excerpt or "")
        return self.code if is_known else None

    @property
    def is_by_runtime(self) -> bool:
        """Whether ``muster.train`` ended the rank, by an outcome with a code of its own."""
        return self.outcome in _OUTCOME_CODES

    @property
    def ended_by(self) -> str | None:
        """The outcome, if ``muster.train`` ended the program by it."""
        return self.outcome if self.code and self.code == _OUTCOME_CODES.get(self.outcome or "") else None

    @property
    def reported_words(self) -> str:
        """The reason that ``muster.train`` printed as it ended the program; empty if it did not."""
        lines = [line for line in (self.error_excerpt or "").splitlines() if line.startswith(_RUNTIMES_LINES)]
        return lines[-1].removeprefix(_RUNTIMES_LINES).strip() if lines and self.ended_by else ""

    @property
    def was_stopped(self) -> bool:
        return self.meant_code in STOPPED_ON_REQUEST


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """One host's part as its supervisor saw it end. ``launcher``: ``torchrun``, or ``command``, which is its own rank;
    None where a supervisor does not say. ``stop_reason`` is set only where the stop had taken effect:
    SIGTERM had been sent to a program that still ran. ``lacks``: the part, such as ``dataset``, that a person has to
    supply on this host before the program can start there.
    """

    launcher: str | None = None
    launcher_exit_code: int | None = None
    launcher_signal: int | None = None
    ranks: Mapping[int, RankExit] = field(default_factory=dict)
    stop_reason: str | None = None
    self_fenced: bool = False
    wall_time_exceeded: bool = False
    spawn_error: str | None = None
    spawn_fault: str | None = None
    lacks: str | None = None
    oom_killed: bool = False
    cgroup_oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    supervisor_vanished: bool = False


class _RankDocument(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    exit_code: int | None = None
    signal: int | None = None
    ended_at_ms: int | None = None
    error_excerpt: str | None = None
    outcome: str | None = None


class _Document(BaseModel):
    """Extra fields are ignored: a newer supervisor may say more."""

    model_config = ConfigDict(strict=True, extra="ignore")
    launcher: str | None = Field(default=None, max_length=32)
    launcher_exit_code: int | None = None
    launcher_signal: int | None = None
    ranks: dict[str, _RankDocument] = Field(default_factory=dict, max_length=4096)
    stop_reason: str | None = None
    self_fenced: bool = False
    wall_time_exceeded: bool = False
    spawn_error: str | None = None
    spawn_fault: str | None = None
    lacks: str | None = None
    oom_killed: bool = False
    cgroup_oom_kills: int | None = None
    memory_limit_bytes: int | None = None
    supervisor_vanished: bool = False


def parse_exit_record(document: Mapping[str, Any]) -> ExitRecord:
    """Parse the record of the wire or the disk.

    Raises:
        ValueError: names each field that does not fit, or states that the record is empty.
    """
    try:
        parsed = _Document.model_validate(dict(document))
        ranks = {_rank_number(name): RankExit(**rank.model_dump()) for name, rank in parsed.ranks.items()}
    except ValidationError as fault:
        fields = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in fault.errors())
        raise ValueError(f"not an exit record: {fields}") from None
    record = ExitRecord(**{**{name: getattr(parsed, name) for name in _Document.model_fields}, "ranks": ranks})
    says_how = record.launcher_exit_code is not None or record.launcher_signal is not None
    if not (says_how or record.spawn_error or record.supervisor_vanished or record.self_fenced):
        raise ValueError("not an exit record: launcher_exit_code, launcher_signal and spawn_error are all missing")
    return record


def _rank_number(name: str) -> int:
    if not (name.isascii() and name.isdigit()) or len(name) > 7:
        raise ValueError(f"not an exit record: ranks.{name[:20]!r} is not the number of a rank")
    return int(name)
