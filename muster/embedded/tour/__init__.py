"""The tour: the main job of Muster on one machine, told as it happens, with what was expected and what was seen."""

import threading
from collections.abc import Callable

from rich.console import Console

from muster.client.rest import RestClient
from muster.embedded.broker import BrokerServer
from muster.embedded.local_stack import LocalStack
from muster.embedded.tour.guide import lead
from muster.embedded.tour.telling import Teller
from muster.embedded.tour.world import EventLog, World


def run_tour(console: Console, stack: LocalStack, stop: threading.Event) -> bool:
    """Whether every step and every bar held. Ends early, as not held, when ``stop`` is set."""
    keys = stack.identities
    broker = stack.servers.get("broker")
    with (
        RestClient(stack.api_url, keys.operator_key_file.read_text(encoding="ascii").strip()) as operator,
        RestClient(stack.api_url, keys.tenant_key_file.read_text(encoding="ascii").strip()) as tenant,
    ):
        world = World(
            operator=operator,
            tenant=tenant,
            events=EventLog(operator),
            teller=Teller(console),
            state_dir=stack.plan.state_dir,
            faults=stack.plan.faults,
            taint_margin_s=stack.plan.policy.training.taint_margin_s,
            hosts=stack.plan.hosts,
            children={child.name: child for child in stack.children},
            broker_pid=_pid_of(broker) if isinstance(broker, BrokerServer) else None,
            stop=stop,
        )
        return lead(world, stack.plan.policy_name)


def _pid_of(broker: BrokerServer) -> Callable[[], int]:
    return lambda: broker.pid if broker.is_running() else 0
