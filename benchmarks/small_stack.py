"""The smallest stack that is led like the whole one: ``python -m benchmarks.small_stack tour|soak STATE_DIR PORT``.

One simulated host with one GPU. The tour of it ends with its first step, which proves the GPU; the soak trains a few
steps on it, without a fault. Both write what the whole ones write, by the same code, and the benchmarks read that.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from rich.console import Console

from benchmarks.quick_policy import write_policy
from local.hosts import simulated_hosts
from local.local_stack import LocalStack, StackPlan
from local.soak import guide as soak
from local.stack import Lead, run_stack
from local.tour import guide as tour
from local.tour import proving
from local.tour.opening import opened
from local.tour.world import World
from muster.cli.framework.exits import Exit
from muster.cli.framework.policy_files import policy_of_file

SOAK: Final = soak.Soak(0.0, 1, is_struck=False, least_left_steps=1, nodes=1, gpus_per_node=1)


def main(arguments: list[str]) -> int:
    led, state_dir, port = arguments[0], Path(arguments[1]), int(arguments[2])
    state_dir.mkdir(parents=True, exist_ok=True)
    policy = write_policy(state_dir, is_quick=True)
    plan = StackPlan(
        state_dir=state_dir,
        port=port,
        hosts=tuple(simulated_hosts(["h100"], 1, state_dir / "hosts")),
        policy=policy_of_file(policy, Exit.USAGE),
        policy_name="the benchmark",
    )
    return run_stack(plan, lead=LEADS[led], exit_when_steps_hold=True)


def command_of(led: str, state_dir: Path, port: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.small_stack", led, str(state_dir), str(port)]


def _led(lead: Callable[[World], bool], console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    with opened(console, stack, stop) as world:
        return lead(world)


def _tour(world: World) -> bool:
    return tour.lead(world, "the benchmark", proving.prove)


def _soak(world: World) -> bool:
    return soak.lead(world, SOAK)


LEADS: Final[Mapping[str, Lead]] = {"tour": partial(_led, _tour), "soak": partial(_led, _soak)}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
