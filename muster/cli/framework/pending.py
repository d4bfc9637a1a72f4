"""Changes that were requested and not yet answered.

Each has a file with its idempotency key, written before the request is sent and removed with the answer. The requesting
process holds the file's lock. A repetition of the same command finds a file whose owner has ended and uses its key, so
that it is one change. If the owner still runs, the repetition is a change of its own.
"""

import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import typer

from muster.cli.framework.file_lock import lock
from muster.cli.framework.output import age_of
from muster.cli.framework.places import state_folder
from muster.cli.framework.profile import find_profile

Body = TypeVar("Body", bound=Mapping[str, Any])
Found = TypeVar("Found", bound=Mapping[str, Any])
MAX_AGE_S: Final = 23 * 3600
"""Age limit of a key, less than the 24 h for which the server stores it."""


@dataclass(slots=True)
class Pending:
    """Unanswered change. ``requested_at``: time of the first request of an interrupted command; None: none was
    interrupted.
    """

    key: str
    body: Any
    requested_at: float | None = None
    path: Path | None = None
    file: IO[str] | None = None


def once(request: object, body: Body, send: Callable[[Body, str], Found], *, what: str) -> Found:
    """Return the answer of ``send(body, idempotency key)``. If interrupted, show how to find out its outcome.

    ``request`` identifies the change, as it was typed. A repetition sends the first ``body`` again, since a time in it
    (``--for 2h``) has moved on. ``what`` names the change in messages: "the job".
    """
    with _pending(_digest([find_profile().api_url, request]), body) as pending:
        if pending.requested_at is not None:
            waited = age_of(time.time() - pending.requested_at)
            typer.echo(f"This was asked {waited} ago and not answered; asking for the same again, not twice.", err=True)
        try:
            answer = send(pending.body, pending.key)
        except KeyboardInterrupt:
            words = f"Interrupted: {what} may have been made or not. The same command again says, and never makes two."
            typer.echo(words, err=True)
            raise
        except Exception as fault:
            if _is_answered(fault):
                _forget(pending)
            raise
        _forget(pending)
        return answer


def _is_answered(fault: Exception) -> bool:
    """Return whether the server answered: a refusal is an answer; silence or a server's fault leaves the
    outcome open.
    """
    status = getattr(fault, "status", None)
    return isinstance(status, int) and 400 <= status < 500 and status not in {408, 425, 429}


def _digest(request: object) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()[:32]


def folder() -> Path:
    return state_folder() / "pending"


@contextmanager
def _pending(digest: str, body: object) -> Iterator[Pending]:
    """Yield the pending change, on a best effort: without a writable home, a repetition may be a second change."""
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        pending = _adopted(digest) or _begun(digest, body)
    except OSError:
        pending = Pending(str(uuid.uuid4()), body)
    try:
        yield pending
    finally:
        if pending.file is not None:
            pending.file.close()


def _adopted(digest: str) -> Pending | None:
    """Return the newest change whose owner has ended; files that are too old are removed meanwhile."""
    for path in sorted(folder().glob("*.json"), key=lambda path: path.name):
        with suppress(OSError, ValueError, KeyError, TypeError):
            file = path.open("r+", encoding="utf-8")
            lock(file)
            document = json.loads(file.read())
            asked_at, key, body = float(document["asked_at"]), str(document["key"]), dict(document["body"])
            if time.time() - asked_at > MAX_AGE_S:
                _remove(path, file)
            elif path.name.startswith(digest) and path.exists():
                return Pending(key, body, asked_at, path, file)
            file.close()
    return None


def _begun(digest: str, body: object) -> Pending:
    key = str(uuid.uuid4())
    path = folder() / f"{digest}-{key}.json"
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
    lock(file, waits=True)
    file.write(json.dumps({"key": key, "asked_at": time.time(), "body": body}))
    file.flush()
    os.fsync(file.fileno())
    return Pending(key, body, None, path, file)


def _forget(pending: Pending) -> None:
    if pending.path is not None:
        _remove(pending.path, pending.file)


def _remove(path: Path, file: IO[str] | None) -> None:
    """Remove the file, elsewhere than on Windows while its lock is held: no other command can adopt it meanwhile."""
    if sys.platform == "win32" and file is not None:
        file.close()  # an open file cannot be removed there
    path.unlink(missing_ok=True)
