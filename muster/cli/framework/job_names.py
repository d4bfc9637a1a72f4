"""Jobs as a person names them: by id or name, by a beginning of either that fits one job alone, or ``-``.

``-`` is the job that was submitted last from here to the same control plane: its id is stored in a file of the user's.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

import typer

from muster.cli.framework.exits import CommandError, Exit
from muster.cli.framework.places import state_folder
from muster.cli.framework.profile import find_profile, is_running, open_client
from muster.cli.framework.tables import Document

LAST: Final = "-"
_ID: Final = re.compile(r"job_[0-9a-z]{26}|job_[0-9a-z]{0,5}")
"""An id, or too few of its digits to search for: the server answers both."""
_ENDED: Final = frozenset({"SUCCEEDED", "FAILED", "CANCELLED"})
_MOST_SEARCHED: Final = 1000
"""Newest jobs among which a beginning is searched."""
_MOST_STORED: Final = 16


def resolved(context: typer.Context, text: str | None) -> str | None:
    """Return the id of the job that an argument or option names. Raises ``CommandError``, or a client's errors."""
    if text is None or context.resilient_parsing or not is_running() or _ID.fullmatch(text):
        return text
    if text == LAST:
        return _last()
    with open_client() as client:
        found = list(islice(client.jobs(name=text), _MOST_SEARCHED))
        if not found:
            newest = islice(client.jobs(limit=200), _MOST_SEARCHED)
            found = [job for job in newest if job["name"].startswith(text) or job["id"].startswith(text)]
    return _only(text, found)


def all_resolved(context: typer.Context, texts: list[str]) -> list[str]:
    """Return the ids of several jobs, as ``resolved``."""
    return [each for text in texts if (each := resolved(context, text)) is not None]


def _only(text: str, found: Sequence[Document]) -> str:
    """Return the one job; of several of a name the one that has not ended, if it is alone."""
    open_ones = [job for job in found if job["state"] not in _ENDED]
    chosen = open_ones if len({job["name"] for job in found}) == 1 and len(open_ones) == 1 else found
    if len(chosen) == 1:
        return str(chosen[0]["id"])
    if not chosen:
        raise CommandError(f"there is no job {text!r}", "`muster job list` shows them.", Exit.NOT_FOUND)
    such = ", ".join(f"{job['id']} ({job['name']}, {job['state']})" for job in chosen[:3])
    raise CommandError(f"{text!r} could be {len(chosen)} jobs", f"Use an id, such as {such}.", Exit.USAGE)


def note_submitted(job_id: str) -> None:
    """Store a job as the last one, on a best effort: without a writable home there is no last one."""
    with suppress(OSError, RuntimeError):  # the latter if no home is known
        stored = {**_stored(), find_profile().api_url: job_id}
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(dict(list(stored.items())[-_MOST_STORED:])), encoding="utf-8")
        draft.replace(path)


def _last() -> str:
    api_url = find_profile().api_url
    job_id = _stored().get(api_url)
    if job_id is None:
        words = f"no job was submitted from here to {api_url}"
        raise CommandError(words, "Name it: `muster job list` shows them.", Exit.NOT_FOUND)
    return job_id


def _stored() -> dict[str, str]:
    try:
        document = json.loads(_path().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(url): str(job_id) for url, job_id in document.items()} if isinstance(document, dict) else {}


def _path() -> Path:
    return state_folder() / "last-jobs.json"
