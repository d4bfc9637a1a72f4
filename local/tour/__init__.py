"""The tour: the main job of Muster on one machine, shown as it happens, each step with expected and seen result."""

import threading

from rich.console import Console

from local.local_stack import LocalStack
from local.tour.guide import lead
from local.tour.opening import opened


def run_tour(console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    """Return whether every step and every bar held. It ends early, as not held, when ``stop`` is set."""
    with opened(console, stack, stop) as world:
        return lead(world, stack.plan.policy_name)
