"""Step 3, its end: a rank, a torchrun and a whole host die in turn, and the job goes on each time."""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from muster.embedded.tour.telling import NotHeldError
from muster.embedded.tour.world import Document, World, log_of

RESTARTS: Final = 3
TRAINED_STEPS: Final = 2
"""Of an attempt, before the next kill."""
_VERIFIED: Final = frozenset({"VERIFIED", "GOOD"})
_REFUSED: Final = frozenset({"TAINTED", "REJECTED"})


def kill_in_turn(world: World, job_id: str) -> None:
    """Ends with the job training again after the last."""
    world.teller.say("what else may die: a rank, the torchrun above it, a host with all that runs there")
    for name, kill in (("rank", _kill_rank), ("torchrun", _kill_torchrun), ("host", _kill_host)):
        _survives(world, job_id, name, kill)


def _survives(world: World, job_id: str, name: str, kill: Callable[[World, Document], str]) -> None:
    before = _training_attempt(world, job_id)
    least = max((one["step"] for one in world.tenant.checkpoints(job_id) if one["status"] in _VERIFIED), default=0)
    what = kill(world, before)
    world.teller.say(f"[bold]kill -9[/] {what}")
    ended = world.until(
        f"the attempt that lost its {name} has ended",
        lambda: world.tenant.job(job_id)["attempts"],
        lambda found: len(found) > before["number"] and found[before["number"] - 1]["ended_at"] is not None,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log=log_of(before),
    )[before["number"] - 1]
    after = _training_attempt(world, job_id)
    first = min(row["step"] for row in world.tenant.steps(job_id) if row["attempt_id"] == after["id"])
    kept = {0, *(one["step"] for one in world.tenant.checkpoints(job_id) if one["status"] not in _REFUSED)}
    world.require(
        f"a killed {name} costs no more than the steps since the last checkpoint",
        f"{ended['cause']}: {ended['proof']}; goes on at step {first}",
        log_of(after),
        is_so=first - 1 in kept and first - 1 >= least,
    )


def _training_attempt(world: World, job_id: str) -> Document:
    """The newest attempt, once it has trained some steps."""

    def trained() -> tuple[Document, int]:
        newest = world.tenant.job(job_id)["attempts"][-1]
        return newest, sum(row["attempt_id"] == newest["id"] for row in world.tenant.steps(job_id))

    found, _ = world.until(
        "it trains",
        trained,
        lambda found: found[1] >= TRAINED_STEPS,
        seen=lambda _: world.progress(world.tenant.job(job_id)),
        log="scheduler",
    )
    return found


def _kill_rank(world: World, attempt: Document) -> str:
    folder = _folder_on(world, attempt, 1)
    rank, about = max(_ranks(folder).items())
    with contextlib.suppress(ProcessLookupError):  # then it has ended by itself, and what follows says so
        os.kill(about["pid"], signal.SIGKILL)
    return f"rank {rank} (pid {about['pid']})"


def _kill_torchrun(world: World, attempt: Document) -> str:
    folder = _folder_on(world, attempt, 0)
    pid = _torchrun_above(world, attempt, min(_ranks(folder).items())[1]["entry_pid"])
    os.kill(pid, signal.SIGKILL)
    return f"torchrun on {attempt['hosts'][0]['node_name']} (pid {pid})"


def _kill_host(world: World, attempt: Document) -> str:
    """Everything that runs there at once, as when its power fails; what is kept comes back as after a boot."""
    name = attempt["hosts"][1]["node_name"]
    folder = _folder_on(world, attempt, 1)
    daemons = [child.pid for child in (world.children[f"worker-host {name}"], world.children[f"agent {name}"])]
    supervisor = json.loads((folder / "supervisor.json").read_bytes())["pid"]
    ranks = [about[key] for about in _ranks(folder).values() for key in ("pid", "entry_pid")]
    torchrun = _torchrun_above(world, attempt, ranks[1])
    for pid in (*filter(None, daemons), supervisor, torchrun, *ranks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return f"host {name}: agent, host worker, supervisor, torchrun, {len(ranks) // 2} ranks"


def _folder_on(world: World, attempt: Document, part: int) -> Path:
    """Where that host keeps its part of the attempt."""
    name = attempt["hosts"][part]["node_name"]
    host = next(host for host in world.hosts if host.name == name)
    return host.folder / "attempts" / str(attempt["id"])


def _ranks(folder: Path) -> dict[int, dict[str, Any]]:
    """Number → what its entry wrote down: its own pid, and the program's."""
    paths = [path for path in (folder / "ranks").glob("*.json") if path.stem.isdigit()]
    return {int(path.stem): json.loads(path.read_bytes()) for path in paths}


def _torchrun_above(world: World, attempt: Document, entry_pid: int) -> int:
    """The parent of a rank's entry. Raises NotHeldError where that is another by now: the rank has just ended."""
    try:
        status = Path(f"/proc/{entry_pid}/stat").read_text(encoding="utf-8", errors="replace")
        pid = int(status.rpartition(")")[2].split()[1])
        if any(word in Path(f"/proc/{pid}/cmdline").read_bytes() for word in (b"torch.distributed", b"torchrun")):
            return pid
    except OSError:
        pid = 0
    raise NotHeldError("torchrun runs above the ranks", f"pid {pid} is none", world.log(log_of(attempt)))
