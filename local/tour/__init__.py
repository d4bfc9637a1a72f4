"""The tour: the main job of Muster on one machine, shown as it happens, each step with expected and seen result."""

import threading

from rich.console import Console

from local.local_stack import LocalStack
from local.tour import watching
from local.tour.guide import lead
from local.tour.opening import opened


def run_tour(console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    """Return whether every step and every bar held. It ends early, as not held, when ``stop`` is set."""
    with opened(console, stack, stop) as world:
        return lead(world, stack.plan.policy_name)


def run_watch_tour(console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    """Return whether each fault of running work was named and survived, as ``run_tour``."""
    with opened(console, stack, stop) as world:
        return lead(world, stack.plan.policy_name, watching.watch, goal=watching.GOAL)
