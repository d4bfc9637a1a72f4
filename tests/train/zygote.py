"""Ranks forked off a process that has imported torch once: a start takes milliseconds instead of seconds.

Each line on standard input is a JSON order (environment, program, output, errors, exit); its answer is the rank's pid.
The rank runs the program as a fresh interpreter would, and its exit code is left in the file ``exit``. Then a byte is
written to the descriptor that the first argument names. The other arguments are modules to import before the forks.
"""

import gc
import importlib
import json
import os
import runpy
import select
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
import torch.distributed.fsdp
import torch.distributed.tensor.parallel
import torch.utils.serialization

import muster.train.runtime.startup  # noqa: F401  # what every rank needs is there before the first fork
from tests.forks import code_of, forget_ended_forks, wake_when_a_fork_ends

torch.set_num_threads(1)
for module in sys.argv[2:]:
    importlib.import_module(module)
# Its first use brings eight hundred modules more, which every rank would load again.
torch.optim.AdamW([torch.zeros(1, requires_grad=True)]).step()
# Each rank collects garbage as it leaves (muster.train.parallel.ranks). Without torch's own objects that takes a
# twentieth of the time, and their memory stays shared.
gc.collect()
gc.freeze()
_MOST_BYTES = 1 << 20
_ENDS = int(sys.argv[1])


def reap(exits: dict[int, Path]) -> None:
    while exits:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        path = exits.pop(pid)
        draft = path.with_suffix(".draft")
        draft.write_text(str(os.waitstatus_to_exitcode(status)), encoding="ascii")
        draft.replace(path)
        os.write(_ENDS, b".")


def run(order: dict[str, Any]) -> int:
    forget_ended_forks()
    os.close(_ENDS)
    for descriptor, name in ((0, os.devnull), (1, order["output"]), (2, order["errors"])):
        opened = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = order["program"]
    return code_of(lambda: runpy.run_path(sys.argv[0], run_name="__main__"))


def main() -> None:
    woken = wake_when_a_fork_ends()
    print("ready", flush=True)  # noqa: T201
    exits: dict[int, Path] = {}
    heard = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, _MOST_BYTES)
            reap(exits)
        if 0 not in ready:
            continue
        content = os.read(0, _MOST_BYTES)
        if not content:
            return
        *orders, heard = (heard + content).split(b"\n")
        for line in orders:
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                os._exit(run(order))
            exits[pid] = Path(order["exit"])
            print(pid, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
