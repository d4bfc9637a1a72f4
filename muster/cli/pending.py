"""Idempotency keys of submissions that were sent and not yet answered: a repeated command finds its key again."""

import hashlib
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any, Final

MAX_AGE_S: Final = 24 * 3600


def _path() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "muster" / "pending.json"


def idempotency_key_for(api_url: str, spec: dict[str, Any]) -> str:
    """The key of this very request, from before an interruption or fresh; on disk before this returns."""
    digest = hashlib.sha256(json.dumps([api_url, spec], sort_keys=True).encode()).hexdigest()
    entries = _load()
    entry = entries.get(digest)
    if entry is None or time.time() - entry["at"] > MAX_AGE_S:
        entry = entries[digest] = {"key": str(uuid.uuid4()), "at": time.time()}
        _store(entries)
    return str(entry["key"])


def is_done(key: str) -> None:
    """The answer came: the next submission of the same words is a new job."""
    entries = _load()
    _store({digest: entry for digest, entry in entries.items() if entry["key"] != key})


def _load() -> dict[str, dict[str, Any]]:
    try:
        document = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _store(entries: dict[str, dict[str, Any]]) -> None:
    """Best effort: without a writable home a repetition after an interruption may be a second job."""
    path = _path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(entries), encoding="utf-8")
        draft.replace(path)
    except OSError:
        return
