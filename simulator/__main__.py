"""Run ``python -m simulator``: many seeds, or one printed event by event.

Exit 1 with the replay command on a violation. ``--bugs`` searches for each planted bug instead; exit 1 if one is not
found.
"""

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from simulator.world.kernel import text_of
from simulator.world.planted import BUGS, PLANTED_BUGS, SEEDS_TO_FIND, first_history_that_finds
from simulator.world.wiring import TRUE_WIRING, Wiring
from simulator.world.world import History, World, run_seed

_CHUNK = 16


class _Planned(World):
    is_planned = True


class _RandomWorld(World):
    is_planned = False


_WORLDS = {"mixed": World, "planner": _Planned, "chance": _RandomWorld}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many histories (default 500)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    parser.add_argument(
        "--scheduler", choices=tuple(_WORLDS), default="mixed",
        help="the real planner in every world, random picking alone, or each in its share of worlds (default mixed)",
    )  # fmt: skip
    parser.add_argument("--bug", choices=sorted(BUGS), help="plant this bug")
    parser.add_argument("--bugs", action="store_true", help=f"find each planted bug within {SEEDS_TO_FIND} seeds")
    parser.add_argument(
        "--trace", "--seed", type=int, nargs="?", const=-1, metavar="SEED", help="print one seed event by event"
    )
    return parser.parse_args()


def _histories(
    seeds: range, wiring: Wiring, bug: str | None, num_processes: int, world_type: type[World]
) -> Iterator[History]:
    run = partial(run_seed, wiring=wiring, bug=bug, world_type=world_type)
    if num_processes == 1:
        yield from map(run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        yield from pool.imap(run, seeds, chunksize=_CHUNK)


def _report(seed: int, wiring: Wiring, bug: str | None, world_type: type[World]) -> int:
    class Teller(world_type):  # type: ignore[valid-type, misc]  # one of three, by the command line
        """The same world; each event is printed before it happens."""

        def run(self) -> None:
            self.kernel.listener = lambda entry: sys.stdout.write(text_of(entry) + "\n")
            super().run()

    history = run_seed(seed, wiring, bug, world_type=Teller)
    if history.violation is not None:
        sys.stdout.write(history.violation.split("\n", 50)[-1] + "\n")
    return int(history.violation is not None)


def _search(num_processes: int) -> int:
    """Print a line for each planted bug: its name, the first seed that shows it, and the invariant that it breaks."""
    num_missed = 0
    with multiprocessing.get_context("fork").Pool(num_processes) as pool:
        for bug, history in zip(PLANTED_BUGS, pool.imap(first_history_that_finds, PLANTED_BUGS), strict=True):
            found = "not found" if history is None else f"{history.seed} {history.broken}"
            is_as_recorded = found == f"{bug.found_at} {bug.breaks}"
            num_missed += history is None
            recorded = "" if is_as_recorded else f"  (recorded: {bug.found_at} {bug.breaks})"
            sys.stdout.write(f"{bug.name} {found}{recorded}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(PLANTED_BUGS)} planted bugs, {num_missed} not found\n")
    return int(num_missed > 0)


def _sweep(seeds: range, wiring: Wiring, bug: str | None, num_processes: int, world_type: type[World]) -> int:
    started_s = time.perf_counter()
    events, violations = 0, 0
    faults, crashes, decisions = Counter[str](), Counter[str](), Counter[str]()
    for number, history in enumerate(_histories(seeds, wiring, bug, num_processes, world_type), 1):
        events += history.num_events
        decisions.update(dict(history.decision_counts))
        faults.update(dict(history.fault_counts))
        crashes.update(dict(history.crash_counts))
        if history.violation is not None:
            violations += 1
            sys.stdout.write(history.violation + "\n")
        if number % 250 == 0:
            sys.stdout.write(f"{number} of {len(seeds)} seeds, {events} events, {violations} violations\n")
            sys.stdout.flush()
    sys.stdout.write(f"faults: {', '.join(f'{name} {count}' for name, count in sorted(faults.items()))}\n")
    sys.stdout.write(f"crashes: {', '.join(f'{name} {count}' for name, count in sorted(crashes.items()))}\n")
    sys.stdout.write(f"decisions: {', '.join(f'{name} {count}' for name, count in sorted(decisions.items()))}\n")
    rate = events / max(time.perf_counter() - started_s, 1e-9)
    sys.stdout.write(f"{len(seeds)} seeds, {events} events, {violations} violations, {rate:.0f} events/s\n")
    return int(violations > 0)


def main() -> int:
    arguments = _arguments()
    gc.set_threshold(100_000)  # millions of small frozen rows, few cycles
    if arguments.bugs:
        return _search(arguments.jobs)
    wiring = BUGS[arguments.bug].wiring if arguments.bug else TRUE_WIRING
    world_type = _WORLDS[arguments.scheduler]
    if arguments.trace is not None:
        seed = arguments.first if arguments.trace < 0 else arguments.trace
        return _report(seed, wiring, arguments.bug, world_type)
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _sweep(seeds, wiring, arguments.bug, arguments.jobs, world_type)


if __name__ == "__main__":
    sys.exit(main())
