"""Exit record of an attempt, which is on disk before its end is reported."""

from __future__ import annotations

from pathlib import Path

from workers.host.supervisor import files
from workers.host.supervisor.cgroup.place import NONE
from workers.host.supervisor.record.log_streams import EXCERPT_BYTES, excerpt_of, sign_in, tail_of_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from workers.host.supervisor.cgroup.group import Group
    from workers.host.supervisor.order import Order
    from workers.host.supervisor.user.job_user import JobUser

PROGRAM = "program"
HOST = "host"
REFUSED = "refused"
PREFLIGHT = "preflight"
"""Side at fault if the program never ran: the tenant's order, our side, none (it was not to start), or this host,
which was not ready while the others of its gang waited.
"""

NO_OUTCOME = "none"
"""Outcome of a rank whose program reported none."""
_GOOD_OUTCOMES = (None, NO_OUTCOME, "done")


def blank_record(attempt_id: str, fence: int, boot_id: str) -> dict[str, Any]:
    """Return every field, with values for a part that never ran."""
    return {
        "schema": 1,
        "attempt_id": attempt_id,
        "fence": fence,
        "boot_id": boot_id,
        "started_at_ms": None,
        "ended_at_ms": files.wall_ms(),
        "launcher": None,
        "launcher_exit_code": None,
        "launcher_signal": None,
        "ranks": {},
        "stop_reason": None,
        "self_fenced": False,
        "wall_time_exceeded": False,
        "spawn_error": None,
        "spawn_fault": None,
        "lacks": None,
        "oom_killed": False,
        "uid": None,
        "uid_reason": None,
        "cgroup": NONE,
        "cgroup_reason": None,
        "cgroup_oom_kills": None,
        "memory_limit_bytes": None,
        "device_files": None,
        "device_files_reason": None,
        "dropped_log_bytes": {},
        "killed_descendants": 0,
        "supervisor_vanished": False,
    }


def refusal(attempt_id: str, fence: int, boot_id: str, why: str, fault: str) -> dict[str, Any]:
    return {**blank_record(attempt_id, fence, boot_id), "spawn_error": why, "spawn_fault": fault}


def host_facts(order: Order, group: Group, *, is_counted: bool = True) -> dict[str, Any]:
    """Return its user and control group, the reason if it had none, and the counts there.

    ``is_counted``: False if the program runs in a group of its container engine's.
    """
    return {
        **order.user.facts(),
        "cgroup": group.kind,
        "cgroup_reason": group.reason,
        "cgroup_oom_kills": group.oom_kills() if is_counted else None,
        "memory_limit_bytes": order.limits.memory_bytes,
    }


def split_status(code: int | None) -> tuple[int | None, int | None]:
    """Return (exit code, signal) from ``os.waitstatus_to_exitcode``."""
    if code is None:
        return None, None
    return (code, None) if code >= 0 else (None, -code)


def file_excerpt(folder: Path, stream: str) -> str:
    tail = tail_of_file(folder / files.LOGS / f"{stream}.log")
    return excerpt_of(tail, sign_in(tail))


def rank_outcomes(
    folder: Path,
    order: Order,
    *,
    reaped: Mapping[int, int],
    main_code: int | None,
    excerpt: Callable[[str], str],
    reported: Mapping[int, str] | None,
) -> dict[str, Any]:
    """Return one entry a rank. The supervisor reaps a rank whose entry was killed too, else its end is unknown.

    ``reaped``: pid → exit code or minus the signal; ``excerpt``: stream → the text of its end; ``reported``: rank →
    the outcome that ``muster.train`` reported, None if the socket for it was not read.
    """
    outcomes: dict[str, Any] = {}
    redactor = order.secrets.redactor()
    for rank in order.local_ranks:
        known = _known_end(order.user.read_json(folder / files.RANKS / f"{rank}.exit.json"))
        started = order.user.read_json(folder / files.RANKS / f"{rank}.json") or {}
        if known is None:
            pid = started.get("pid")
            code = (reaped.get(pid) if isinstance(pid, int) else None) if order.is_torchrun else main_code
            exit_code, number = split_status(code)
            known = {"exit_code": exit_code, "signal": number, "ended_at_ms": files.wall_ms() if started else None}
        outcome = None if reported is None else reported.get(rank, NO_OUTCOME)
        has_failed = (known["exit_code"] != 0 or outcome not in _GOOD_OUTCOMES) and bool(started)
        words = (_reported_error(order.user, started) or excerpt(str(rank))) if has_failed else None
        outcomes[str(rank)] = {**known, "error_excerpt": redactor.words(words), "outcome": outcome}
    return outcomes


def _known_end(stated: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the end that a rank's entry wrote, if it has the entry's form: the program may write there too."""
    if stated is None:
        return None
    end = {name: stated.get(name) for name in ("exit_code", "signal", "ended_at_ms")}
    is_plain = all(value is None or (type(value) is int and abs(value) < 1 << 53) for value in end.values())
    return end if is_plain and (end["exit_code"] is None) != (end["signal"] is None) else None


def _reported_error(user: JobUser, started: dict[str, Any]) -> str | None:
    """Return the exception as torchelastic's ``@record`` wrote it, if the program uses that."""
    if not started.get("error_file"):
        return None
    document = user.read_json(Path(str(started["error_file"])))
    try:
        text = str(document["message"]["extraInfo"]["py_callstack"]) if document else None
    except (KeyError, TypeError):
        return None
    return None if text is None else excerpt_of(text.encode("utf-8", "replace"))[-EXCERPT_BYTES:]
