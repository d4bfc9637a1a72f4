"""Kills under a training job, found by files of its hosts. Each kill returns what it killed."""

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any, Final

from local.tour.output import StepFailedError
from local.tour.world import Document, World, log_of

HOST_PART: Final = 1
"""The part of an attempt whose host dies."""


def kill_rank(world: World, attempt: Document) -> str:
    folder = _folder_on(world, attempt, 1)
    rank, about = max(_ranks(folder).items())
    with contextlib.suppress(ProcessLookupError):  # then it has ended by itself, and the next step shows it
        os.kill(about["pid"], signal.SIGKILL)
    return f"rank {rank} (pid {about['pid']})"


def a_rank(world: World, attempt: Document) -> int:
    """Return the pid of its first program."""
    return int(min(_ranks(_folder_on(world, attempt, 0)).items())[1]["pid"])


def kill_torchrun(world: World, attempt: Document) -> str:
    folder = _folder_on(world, attempt, 0)
    pid = _torchrun_above(world, attempt, min(_ranks(folder).items())[1]["entry_pid"])
    os.kill(pid, signal.SIGKILL)
    return f"torchrun on {attempt['hosts'][0]['node_name']} (pid {pid})"


def kill_host(world: World, attempt: Document) -> str:
    """Kill all processes on the host at once, as when its power fails; its files are there again as after a boot."""
    name = attempt["hosts"][HOST_PART]["node_name"]
    folder = _folder_on(world, attempt, HOST_PART)
    daemons = [child.pid for child in (world.children[f"worker-host {name}"], world.children[f"agent {name}"])]
    supervisor = _supervisor(folder)
    ranks = [about[key] for about in _ranks(folder).values() for key in ("pid", "entry_pid")]
    torchrun = _torchrun_above(world, attempt, ranks[1])
    for pid in (*filter(None, daemons), supervisor, torchrun, *ranks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"host {name}: agent, host worker, supervisor, torchrun, {len(ranks) // 2} ranks"


def kill_supervisor(world: World, attempt: Document) -> str:
    """Kill the supervisor. It cannot end its programs any more: its launcher does, and proves it."""
    pid = _supervisor(_folder_on(world, attempt, 0))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"supervisor on {attempt['hosts'][0]['node_name']} (pid {pid})"


def _supervisor(folder: Path) -> int:
    return int(json.loads((folder / "supervisor.json").read_bytes())["pid"])


def _folder_on(world: World, attempt: Document, part: int) -> Path:
    """Return the folder of that host's part of the attempt."""
    name = attempt["hosts"][part]["node_name"]
    host = next(host for host in world.hosts if host.name == name)
    return host.folder / "attempts" / str(attempt["id"])


def _ranks(folder: Path) -> dict[int, dict[str, Any]]:
    """Return number → the entry's record: its own pid, and the program's."""
    paths = [path for path in (folder / "ranks").glob("*.json") if path.stem.isdigit()]
    return {int(path.stem): json.loads(path.read_bytes()) for path in paths}


def _torchrun_above(world: World, attempt: Document, entry_pid: int) -> int:
    """Return the parent of a rank's entry.

    Raises StepFailedError where it has another parent: the rank has just ended.
    """
    try:
        status = Path(f"/proc/{entry_pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(status.rpartition(")")[2].split()[1])
        if any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in (b"torch.distributed", b"torchrun")):
            return pid
    except OSError:
        pid = 0
    raise StepFailedError("torchrun runs above the ranks", f"pid {pid} is none", world.log(log_of(attempt)))
