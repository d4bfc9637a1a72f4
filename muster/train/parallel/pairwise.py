"""One host's part in one all-gather of a group of hosts, before a program starts: does it come back, right, how fast.

A process of its own: ``python -m muster.train.parallel.pairwise``, which takes one JSON object on stdin and says one on
stdout.

| field | meaning |
|---|---|
| ``key`` | of run, round and group; the group's keys in its store stand beneath it |
| ``hosts``, ``rank`` | the group's names, and which of them this one is |
| ``address``, ``port`` | of the group's store, which rank 0 holds |
| ``listen_fd`` | of rank 0 alone: the socket that listens there already |
| ``device`` | ``cpu`` (gloo) or ``cuda`` (NCCL, on the first GPU that it sees) |
| ``gather_bytes`` | what each host gives, a multiple of 4 |
| ``num_gathers`` | those that are timed; one before them is not |
| ``timeout_s`` | how long a host waits for the others |

Answer: ``{"rate_bytes_per_s": …}``, what this host received from the others by second in the median gather, or
``{"why": …}``; that begins with ``cannot take part`` where this host cannot meet anybody. Failpoint of each gather:
``pairwise.gather``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from datetime import timedelta
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from muster.train.runtime.failpoints import failpoint


class WrongBytesError(RuntimeError):
    """What arrived is not what was sent."""


class CannotError(RuntimeError):
    """This host cannot meet anybody as it is asked to: nothing is said of it."""


def main() -> None:
    """A library that prints must not spoil the answer: what it says goes to stderr."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    order = json.load(sys.stdin)
    try:
        answer: dict[str, Any] = {"rate_bytes_per_s": gather(order)}
    except CannotError as fault:
        answer = {"why": f"cannot take part: {fault}"[:500]}
    except (RuntimeError, ValueError, OSError) as fault:  # torch.distributed's own are RuntimeErrors
        answer = {"why": f"{type(fault).__name__}: {fault}".split("\n", 1)[0][:500]}
    with answers:
        answers.write(json.dumps(answer) + "\n")
    # Not by the interpreter's end: a thread of a group whose peer is gone may keep it from ending.
    os._exit(0)


def gather(order: dict[str, Any]) -> float:
    """Returns bytes a second.

    Raises:
        RuntimeError: a peer did not come, broke off, or took too long; ``WrongBytesError`` names whose bytes are wrong.
    """
    rank, world_size = order["rank"], len(order["hosts"])
    patience = timedelta(seconds=order["timeout_s"])
    listening = {} if order.get("listen_fd") is None else {"master_listen_fd": order["listen_fd"]}
    stores: Any = dist  # torch names its stores there for programs, not for type checkers
    store = stores.TCPStore(
        order["address"], order["port"], is_master=rank == 0, timeout=patience, wait_for_workers=False, **listening
    )
    device, backend = _place(order["device"])
    dist.init_process_group(
        backend, store=stores.PrefixStore(order["key"], store), rank=rank, world_size=world_size, timeout=patience
    )
    own = _pattern(rank, order["gather_bytes"], device)
    found = [torch.empty_like(own) for _ in range(world_size)]
    _gather_once(found, own)
    for sender, piece in enumerate(found):
        if not torch.equal(piece, _pattern(sender, order["gather_bytes"], device)):
            raise WrongBytesError(f"what {order['hosts'][sender]} sent is not what arrived")
    seconds = median(_gather_once(found, own) for _ in range(order["num_gathers"]))
    dist.barrier()  # whoever holds the store stays until all have done
    return (world_size - 1) * own.nbytes / max(seconds, 1e-9)


def _place(name: str) -> tuple[torch.device, str]:
    if name != "cuda":
        return torch.device("cpu"), "gloo"
    if not torch.cuda.is_available():
        raise CannotError(f"torch {torch.__version__} sees no CUDA device here")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0), "nccl"


def _pattern(rank: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """Other words in each place, and of each rank."""
    return torch.arange(num_bytes // 4, dtype=torch.int32, device=device) * 31 + rank * 1_000_003


def _gather_once(found: list[torch.Tensor], own: torch.Tensor) -> float:
    """Seconds until all have come."""
    began = time.perf_counter()
    failpoint("pairwise.gather")
    dist.all_gather(found, own)
    if own.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
