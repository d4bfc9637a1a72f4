"""A world over a running stack: a guide reads by REST, and kills by pid."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from local.errors import EmbeddedServerError
from local.local_stack import LocalStack
from local.restarts import Server
from local.tour.output import Teller
from local.tour.world import EventLog, World
from muster.client.rest import RestClient


@contextmanager
def opened(console: Console, stack: LocalStack, stop: threading.Event) -> Iterator[World]:
    """Yield a world. Its waits end as soon as ``stop`` is set."""
    keys = stack.identities
    with (
        RestClient(stack.api_url, keys.operator_key_file.read_text(encoding="ascii").strip()) as operator,
        RestClient(stack.api_url, keys.tenant_key_file.read_text(encoding="ascii").strip()) as tenant,
    ):
        yield World(
            operator=operator,
            tenant=tenant,
            events=EventLog(operator),
            teller=Teller(console),
            state_dir=stack.plan.state_dir,
            faults=stack.plan.faults,
            taint_margin_s=stack.plan.policy.training.taint_margin_s,
            min_run_s=max(
                (tier.min_run_s for tier in stack.plan.policy.tiers.values() if tier.notice_s is not None), default=0.0
            ),
            hosts=stack.plan.hosts,
            children={child.name: child for child in stack.children},
            servers={name: _pid_of(server) for name, server in stack.servers.items()},
            stop=stop,
        )


def _pid_of(server: Server) -> Callable[[], int]:
    def pid() -> int:
        try:
            return server.pid if server.is_running() else 0
        except EmbeddedServerError:  # it ended between the two
            return 0

    return pid
