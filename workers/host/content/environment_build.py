"""Process that builds an environment in the sandbox of its job: as the job's user, without files or tokens of the host.

It reads its order from the descriptor that the first argument names, and writes one line of JSON: its end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Literal

import msgspec

from muster.environments.build import build
from muster.environments.faults import (
    BuildFaultError,
    EnvironmentFaultError,
    IndexFaultError,
    LockFaultError,
)
from muster.environments.recipe import PackageIndex, Recipe
from workers.host.content.whole_copy import FULL


class BuildOrder(msgspec.Struct, frozen=True, kw_only=True):
    """``work``: a folder with the lock file. ``target``: where the environment appears, whole."""

    recipe: Recipe
    work: str
    target: str
    python: str
    index: PackageIndex
    cache: str
    log: str
    within_s: float


class BuildEnd(msgspec.Struct, frozen=True, kw_only=True):
    """``found``: built; ``final``: the lock is to blame; ``passing``: a later try may succeed; ``host``: this host is
    to blame. ``line``: of the lock.
    """

    found: Literal["built", "final", "passing", "host"]
    words: str = ""
    line: int | None = None


def run(order: BuildOrder) -> BuildEnd:
    try:
        build(
            order.recipe,
            Path(order.work),
            Path(order.target),
            python=order.python,
            index=order.index,
            cache=Path(order.cache),
            log=Path(order.log),
            within_s=order.within_s,
        )
    except (LockFaultError, BuildFaultError) as fault:
        return BuildEnd(found="final", words=str(fault), line=fault.line)
    except IndexFaultError as fault:
        return BuildEnd(found="passing", words=str(fault))
    except EnvironmentFaultError as fault:
        return BuildEnd(found="host", words=str(fault))
    except OSError as fault:
        words = "this host's disk is full" if fault.errno in FULL else f"this host cannot build it: {fault}"
        return BuildEnd(found="host", words=words)
    return BuildEnd(found="built")


def main() -> None:
    with open(int(sys.argv[1]), "rb") as asked:  # noqa: PTH123  # a descriptor
        order = msgspec.json.decode(asked.read(), type=BuildOrder)
    os.write(1, f"{json.dumps(msgspec.to_builtins(run(order)))}\n".encode())


if __name__ == "__main__":
    main()
