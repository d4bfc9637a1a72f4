"""The soak: a gang trains for long, a process dies each minute, and the time is accounted at the end."""

import threading
from functools import partial

from rich.console import Console

from local.local_stack import LocalStack
from local.soak.guide import Soak, lead
from local.stack import Lead
from local.tour.opening import opened


def soak(minutes: float, seed: int) -> Lead:
    """Return the work for ``run_stack``; its figures are stored in ``soak.json`` of the state folder."""
    return partial(_run, Soak(minutes, seed))


def _run(plan: Soak, console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    with opened(console, stack, stop) as world:
        return lead(world, plan)
