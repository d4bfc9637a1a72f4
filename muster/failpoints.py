"""Named places where a test or a drill can make this process die, fail or pause. Off unless armed.

``MUSTER_FAILPOINTS="job.submit.after_commit=kill; relay.after_send=raise; sequencer.before_commit=sleep:2; x=kill@3"``:
``kill`` is SIGKILL to ourselves, ``raise`` a ``FailpointError``, ``sleep:S`` a pause in seconds; ``@n`` means the n-th
hit only. Modules declare their names at import. A process calls ``require_known`` once everything is imported, which
arms what the environment says.
"""

import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

ENVIRONMENT: Final = "MUSTER_FAILPOINTS"
_ARMING: Final = re.compile(
    r"(?P<name>[a-z0-9_.-]+)=(?:(?P<verb>kill|raise)|sleep:(?P<pause_s>\d+(?:\.\d+)?))(?:@(?P<hit>[1-9]\d*))?"
)


class FailpointError(RuntimeError):
    """The fault that an armed failpoint plays."""


class FailpointConfigError(ValueError):
    """``MUSTER_FAILPOINTS`` cannot be read, or names a failpoint that no module declares."""


@dataclass(slots=True)
class _Armed:
    """The action at one failpoint. ``only_hit`` None: at every hit."""

    verb: str
    pause_s: float
    only_hit: int | None
    hits: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))


def _parse(specification: str) -> dict[str, _Armed]:
    armed = {}
    for part in filter(None, (part.strip() for part in specification.split(";"))):
        match = _ARMING.fullmatch(part)
        if match is None:
            raise FailpointConfigError(
                f"{ENVIRONMENT}: {part!r} is not NAME=kill, NAME=raise or NAME=sleep:SECONDS, with @N for the N-th hit"
            )
        armed[match["name"]] = _Armed(
            verb=match["verb"] or "sleep",
            pause_s=float(match["pause_s"] or 0),
            only_hit=int(match["hit"]) if match["hit"] else None,
        )
    return armed


_declared: set[str] = set()
_armed: dict[str, _Armed] = {}


def declare(name: str) -> str:
    """Add ``name`` to the registry, and return it to be kept as a module's constant."""
    _declared.add(name)
    return name


def is_declared(name: str) -> bool:
    return name in _declared


def declared() -> tuple[str, ...]:
    """Every name declared by the modules imported so far, sorted."""
    return tuple(sorted(_declared))


def require_known() -> None:
    """Arm what the environment says.

    Raise ``FailpointConfigError`` when a name is armed that no module declares: the drill would test nothing.
    """
    _armed.update(_parse(os.environ.get(ENVIRONMENT, "")))
    unknown = sorted(_armed.keys() - _declared)
    if unknown:
        raise FailpointConfigError(
            f"{ENVIRONMENT} arms {', '.join(unknown)}, which no module declares. Known: {', '.join(declared())}"
        )


def failpoint(name: str) -> None:
    """Do what is armed at ``name``; nothing when nothing is."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None or (armed.only_hit is not None and next(armed.hits) != armed.only_hit):
        return
    if armed.verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.verb == "raise":
        raise FailpointError(f"failpoint {name}")
    time.sleep(armed.pause_s)


@contextmanager
def arming(specification: str) -> Iterator[None]:
    """Arm for a while, in tests of one process. Raises ``FailpointConfigError`` as the environment would."""
    before = dict(_armed)
    _armed.update(_parse(specification))
    try:
        require_known()
        yield
    finally:
        _armed.clear()
        _armed.update(before)
