"""The tour: the main job of Muster on one machine, told as it happens, with what was expected and what was seen."""

import threading

from rich.console import Console

from local.local_stack import LocalStack
from local.tour.guide import lead
from local.tour.opening import opened


def run_tour(console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    """Whether every step and every bar held. Ends early, as not held, when ``stop`` is set."""
    with opened(console, stack, stop) as world:
        return lead(world, stack.plan.policy_name)
