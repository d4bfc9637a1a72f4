"""What the launcher says to a rank: torchrun's variables and Muster's own, each with what holds without it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

EXIT_STOPPED_WITH_CHECKPOINT = 75
EXIT_STOPPED_WITHOUT = 76
EXIT_NEVER_RESTART = 93


class StaleFenceError(RuntimeError):
    """A newer attempt of this job has begun: this one may write nothing any more."""


@dataclass(frozen=True)
class Surroundings:
    """``fence`` grows with each attempt; ``checkpoint_dir`` is the job's own, None where nothing is kept.

    ``resume_from`` is the generation that the control plane chose; ``refused`` are those it forbids.
    """

    rank: int = 0
    world_size: int = 1
    attempt_id: str = ""
    fence: int = 0
    socket_path: str | None = None
    checkpoint_dir: Path | None = None
    resume_from: str | None = None
    refused: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, environ: Mapping[str, str] | None = None) -> Surroundings:
        """Raises ValueError naming the variable that cannot be read."""
        environ = os.environ if environ is None else environ
        folder = environ.get("MUSTER_CHECKPOINT_DIR")
        resume = _resume(environ.get("MUSTER_RESUME"))
        return cls(
            rank=_number(environ, "RANK", 0),
            world_size=_number(environ, "WORLD_SIZE", 1),
            attempt_id=environ.get("MUSTER_ATTEMPT_ID", ""),
            fence=_number(environ, "MUSTER_FENCE", 0),
            socket_path=environ.get("MUSTER_TRAIN_SOCKET"),
            checkpoint_dir=Path(folder) if folder else None,
            resume_from=resume.get("generation"),
            refused=frozenset(resume.get("refuse") or ()),
        )


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r}: must be a whole number") from None


def _resume(text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ValueError(  # noqa: TRY004  # the variable's value is at fault, not anybody's type
            f"MUSTER_RESUME={text!r}: must be a JSON object"
        )
    return document
