"""Records bundles of real hangs: gloo ranks on this machine that skip, mismatch, stop, sleep, compute, or read slowly.

    python -m tests.watch.bundles.record tests/watch/bundles/recorded.json

Each rank has a thread that inspects its main thread once all ranks stand still, as the sensor of ``muster.train`` does.
Torch is imported once, for all ranks, which are forks.
A stopped rank cannot inspect itself: its parent reads its state from the kernel.
"""

import json
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
from torch import distributed as dist
from torch._C import _distributed_c10d
from torch.utils.data import DataLoader, Dataset

from watch.forensics.flight_recorder import read_dump

STILL_S: Final = 3.0
STEPS: Final = 4


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _stack(frame: FrameType | None) -> list[str]:
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(f"{code.co_name} {_place(code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def _place(path: str) -> str:
    """Return a path as it is on any machine."""
    for mark, short in (
        ("site-packages/", "/usr/lib/python3/site-packages/"),
        ("lib/python3.11/", "/usr/lib/python3.11/"),
    ):
        if mark in path:
            return short + path.rpartition(mark)[2]
    return f"/app/{Path(path).name}"


def _anywhere(line: str) -> str:
    """Return a line of output without the folders of this machine."""
    return re.sub(r'"(/[^"]+)"', lambda found: f'"{_place(found[1])}"', line)


def _state_of(pid: int) -> str:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return {"R": "running", "S": "sleeping", "D": "blocked", "T": "stopped", "Z": "zombie"}.get(words[0], "unknown")


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _collectives() -> list[str]:
    raw = _distributed_c10d._dump_fr_trace_json()  # type: ignore[attr-defined]
    dump = read_dump(raw.encode() if isinstance(raw, str) else raw)
    return [
        f"{each.group} {each.sequence} {each.operation} {'x'.join(map(str, each.sizes)) or '-'} {each.dtype or '-'} "
        f"{each.state or '-'}" + (f" [{','.join(map(str, each.ranks))}]" if each.ranks else "")
        for each in dump.collectives
    ]


def _watch_itself(rank: int, folder: Path) -> None:
    main = threading.main_thread().ident
    time.sleep(STILL_S - 1)
    before = _cpu_s(os.getpid())
    time.sleep(1)
    cpu = _cpu_s(os.getpid()) - before
    document = {
        "phase": "step",
        "step": STEPS,
        "still": STILL_S,
        "process": "running" if cpu > 0.5 else "sleeping",
        "cpu": round(cpu, 2),
        "stack": _stack(sys._current_frames().get(main or 0)),
        "collectives": _collectives(),
    }
    (folder / f"{rank}.part").write_text(json.dumps(document))
    (folder / f"{rank}.part").rename(folder / f"{rank}.json")


def _rank(rank: int, world: int, port: int, folder: Path, fault: Callable[[int], bool]) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=world)
    watcher = threading.Thread(target=_watch_itself, args=(rank, folder), daemon=True)
    gradient, loss = torch.ones(8), torch.ones(1)
    for _ in range(STEPS):
        dist.all_reduce(gradient)
        dist.broadcast(loss, 0)
    watcher.start()
    if not fault(rank):
        dist.all_reduce(gradient)
    dist.broadcast(loss, 0)
    dist.all_reduce(gradient)
    dist.barrier()
    time.sleep(60)


def _skips(rank: int) -> bool:
    return rank == 1


def _mismatches(rank: int) -> bool:
    if rank == 1:
        dist.all_reduce(torch.ones(16))
    return rank == 1


def _mismatches_less(rank: int) -> bool:
    if rank == 1:
        dist.all_reduce(torch.ones(4))
    return rank == 1


def _other_operation(rank: int) -> bool:
    if rank == 2:
        dist.all_gather_into_tensor(torch.ones(24), torch.ones(8))
    return rank == 2


def _sleeps(rank: int) -> bool:
    if rank == 1:
        time.sleep(60)
    return False


def _computes(rank: int) -> bool:
    number = 0
    while rank == 0:
        number += 1
    return False


def _stops(rank: int) -> bool:
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    return False


def _dies(rank: int) -> bool:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return False


class _Slow(Dataset[int]):
    """A data set whose storage does not answer."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3:
            time.sleep(60)
        return index


def _loads(rank: int) -> bool:
    if rank == 1:
        list(DataLoader(_Slow(), num_workers=0))
    return False


def _loads_by_worker(rank: int) -> bool:
    if rank == 1:
        list(DataLoader(_Slow(), num_workers=1))
    return False


def _reads(rank: int) -> bool:
    if rank == 0:
        pipe = tempfile.mkdtemp() + "/weights.pt"
        os.mkfifo(pipe)
        torch.load(pipe)
    return False


KINDS: Final[Mapping[str, tuple[Callable[[int], bool], int, str, int]]] = {
    "skips_an_all_reduce": (_skips, 3, "skipped_collective", 1),
    "two_ranks_one_skips": (_skips, 2, "skipped_collective", 1),
    "all_reduce_of_another_size": (_mismatches, 3, "mismatched_collective", 1),
    "two_ranks_of_another_size": (_mismatches, 2, "mismatched_collective", 1),
    "smaller_than_the_others": (_mismatches_less, 3, "mismatched_collective", 1),
    "gathers_where_others_reduce": (_other_operation, 3, "mismatched_collective", 2),
    "sleeps": (_sleeps, 2, "endless_python", 1),
    "computes_without_end": (_computes, 2, "endless_python", 0),
    "is_stopped": (_stops, 3, "stopped_process", 2),
    "is_killed": (_dies, 2, "dead_rank", 1),
    "loads_in_the_main_process": (_loads, 2, "data_loader", 1),
    "loads_by_a_worker": (_loads_by_worker, 2, "data_loader", 1),
    "reads_weights_without_end": (_reads, 2, "storage", 0),
}


def record(kind: str) -> dict[str, Any]:
    """Run one hang and return its bundle in the compact form of ``labelled``."""
    fault, world, cause, culprit = KINDS[kind]
    folder, port = Path(tempfile.mkdtemp()), _free_port()
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            output = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            try:
                _rank(rank, world, port, folder, fault)
            finally:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    _wait_until_seen(folder, children)
    ranks = {}
    for rank, child in enumerate(children):
        path = folder / f"{rank}.json"
        state = _state_of(child)
        document = json.loads(path.read_text()) if path.exists() else {"phase": "step", "step": STEPS, "cpu": 0.0}
        lines = [line for line in (folder / f"{rank}.log").read_text().splitlines() if "Warning" not in line]
        ended = {"process": "gone"} if state == "zombie" else {"process": document.get("process", state)}
        ranks[str(rank)] = {**document, **ended, "lines": [_anywhere(line) for line in lines[-30:]]}
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    expect: dict[str, Any] = {"cause": cause, "rank": culprit, "node": "node-a"}
    if cause == "mismatched_collective" and all(rank["process"] == "gone" for rank in ranks.values()):
        del expect["rank"]  # gloo aborts at once, and its line does not name the side that differs
    return {"name": f"recorded_{kind}", "source": "gloo", "expect": expect, "hosts": {"node-a": {"ranks": ranks}}}


def _wait_until_seen(folder: Path, children: list[int]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        missing = [n for n in range(len(children)) if not (folder / f"{n}.json").exists()]
        if all(_state_of(children[n]) in {"zombie", "stopped"} for n in missing):
            return
        time.sleep(0.1)


def main() -> None:
    cases = [record(kind) for kind in KINDS]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    Path(sys.argv[1]).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
