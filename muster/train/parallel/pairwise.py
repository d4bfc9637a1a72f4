"""One host's part in one all-gather of a group of hosts, which checks their network before a program starts.

It is a process of its own: ``python -m muster.train.parallel.pairwise``, which reads one JSON object on stdin and
writes one on stdout.

| field | meaning |
|---|---|
| ``key`` | run, round and group; the prefix of the group's keys in its store |
| ``hosts``, ``rank`` | the group's names, and this host's index in them |
| ``address``, ``port`` | the group's store, which rank 0 runs |
| ``listen_fd`` | for rank 0 alone: the socket that listens there already |
| ``device`` | ``cpu`` (gloo) or ``cuda`` (NCCL, on the first GPU that it sees) |
| ``gather_bytes`` | the bytes that each host sends, a multiple of 4 |
| ``num_gathers`` | the number of timed gathers; one gather before them is not timed |
| ``timeout_s`` | how long a host waits for the others |

Answer: ``{"rate_bytes_per_s": …}``, the bytes a second that this host received from the others in the median gather, or
``{"why": …}``, which begins with ``cannot take part`` if this host cannot meet any other. Failpoint of each gather:
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
    """The bytes that arrived are not the ones that were sent."""


class CannotError(RuntimeError):
    """This host cannot take part as requested, which is no statement about its network."""


def main() -> None:
    """Write the answer to stdout; other output, such as a library's prints, goes to stderr and cannot spoil it."""
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
    # Not by the interpreter's end: a thread of a group without its peer may keep it from ending.
    os._exit(0)


def gather(order: dict[str, Any]) -> float:
    """Return the rate in bytes a second.

    Raises:
        RuntimeError: a peer did not arrive, broke off, or took too long; ``WrongBytesError`` names their sender.
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
    dist.barrier()  # the rank with the store stays until all ranks have finished
    return (world_size - 1) * own.nbytes / max(seconds, 1e-9)


def _place(name: str) -> tuple[torch.device, str]:
    if name != "cuda":
        return torch.device("cpu"), "gloo"
    if not torch.cuda.is_available():
        raise CannotError(f"torch {torch.__version__} sees no CUDA device here")
    torch.cuda.set_device(0)
    return torch.device("cuda", 0), "nccl"


def _pattern(rank: int, num_bytes: int, device: torch.device) -> torch.Tensor:
    """Return numbers that differ in each place and for each rank."""
    return torch.arange(num_bytes // 4, dtype=torch.int32, device=device) * 31 + rank * 1_000_003


def _gather_once(found: list[torch.Tensor], own: torch.Tensor) -> float:
    """Return the seconds until all bytes have arrived."""
    began = time.perf_counter()
    failpoint("pairwise.gather")
    dist.all_gather(found, own)
    if own.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
