"""Checkpoints that an attempt on this host has committed, from the relay that sees them to the keeper of outputs.

The relay adds a line for each. The keeper notes how far it is before it copies: a copy that is broken off is not made
again, since the files are of a later step by then.
"""

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from muster.durable import write_durably
from muster.wire.training import TrainLine
from workers.host.supervisor.files import ORDER, read_json

SEEN: Final = "checkpoints.jsonl"
DONE: Final = "checkpoints_copied.json"
MOST_BYTES: Final = 1 << 20
"""So much is read at once."""
_log = structlog.get_logger(__name__)


class Seen(NamedTuple):
    """``has_next``: a later one has been committed already."""

    step: int
    has_next: bool


def note_checkpoints(attempt: Path, lines: Sequence[TrainLine], offset: int) -> None:
    """Note the committed checkpoints among the lines that the control plane has taken, up to byte ``offset``."""
    steps = [line.message.get("step") for line in lines if _is_committed(line)]
    if not steps or not ((read_json(attempt / ORDER) or {}).get("outputs") or {}).get("patterns"):
        return
    content = "".join(json.dumps({"step": step, "offset": offset}) + "\n" for step in steps)
    try:
        with (attempt / SEEN).open("a", encoding="ascii") as file:
            file.write(content)
    except OSError as fault:  # a full disk, say: the relay of the training is worth more
        _log.warning("checkpoint_not_seen", attempt_id=attempt.name, steps=steps, fault=str(fault))


def unseen(attempt: Path) -> Iterator[Seen]:
    """Yield the checkpoints since the last call, each of them once."""
    done = read_json(attempt / DONE) or {"bytes": 0, "offset": 0}
    try:
        with (attempt / SEEN).open("rb") as file:
            file.seek(done["bytes"])
            new = file.read(MOST_BYTES)
    except FileNotFoundError:
        return
    new = new[: new.rfind(b"\n") + 1]
    if not new:
        return
    lines = list(_whole_lines(new))
    last = max([done["offset"], *(line["offset"] for line in lines)])
    write_durably(attempt / DONE, json.dumps({"bytes": done["bytes"] + len(new), "offset": last}).encode())
    # A batch that is sent again was noted before.
    steps = [line["step"] for line in lines if line["offset"] > done["offset"]]
    for number, step in enumerate(steps):
        yield Seen(step, number + 1 < len(steps))


def _whole_lines(content: bytes) -> Iterator[dict[str, int]]:
    """Yield the lines, without one that a full disk has cut."""
    for line in content.splitlines():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _is_committed(line: TrainLine) -> bool:
    message, step = line.message, line.message.get("step")
    is_step = isinstance(step, int) and not isinstance(step, bool) and 0 <= step < 1 << 53
    return message.get("type") == "checkpoint" and message.get("status") == "committed" and is_step
