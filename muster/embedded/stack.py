"""``muster up``: the whole control plane and one simulated host on this machine, until Ctrl-C.

Every process dies with this one. Killed at any point, the next start finds its data and goes on: the database and the
broker are durable, and programs that still run are adopted.
"""

import fcntl
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import msgspec
from rich.console import Console

from muster.db import migrate
from muster.db.engine import make_engine
from muster.embedded.bootstrap import LocalIdentities, bootstrap
from muster.embedded.broker import BrokerServer
from muster.embedded.children import Child, child_environment
from muster.embedded.leaving import stop_children, stop_programs
from muster.embedded.ports import free_port, port_is_taken
from muster.embedded.postgres import PostgresServer
from muster.embedded.proof import prove_stack
from muster.processes import stop_on_signals
from muster.services.unit_of_work import UnitOfWorkFactory
from muster.settings import make_secret_key_file

READY_TIMEOUT_S: Final = 30.0
KEEP_S: Final = 0.2
FAULTS: Final = "faults.json"
"""What `muster sim inject` writes and the simulated GPUs' driver reads, in the state folder."""


class StackError(Exception):
    """The stack cannot start, or did not become ready: says why and what to do."""


@dataclass(frozen=True, slots=True)
class LocalStack:
    """Where a running stack is reached; ``cli.json`` holds the same, so that the CLI finds it."""

    api_url: str
    identities: LocalIdentities
    state_dir: Path


def run_stack(*, state_dir: Path, port: int, exit_when_held: bool, num_gpus: int) -> int:
    """Start everything, say where it is, and keep it until a signal; with ``exit_when_held`` prove it and stop.

    Returns the exit code: 0, or 1 when the proof did not hold.

    Raises:
        StackError: another stack works in ``state_dir``, or a process did not become ready.
    """
    console = Console(highlight=False)
    state_dir = state_dir.absolute()
    stop = stop_on_signals()
    with ExitStack() as ending:
        started = time.monotonic()
        _lock(state_dir, ending)
        stack, children = _start(state_dir, port, num_gpus, console, ending)
        _say_ready(console, stack, time.monotonic() - started)
        if exit_when_held:
            return 0 if prove_stack(console, stack.api_url, stack.identities) else 1
        while not stop.wait(KEEP_S):
            for child in children:
                if news := child.keep():
                    console.print(f"[yellow]!![/] {news}")
        console.print("stopping …")
    console.print("stopped; the state stays in", str(state_dir))
    return 0


def _lock(state_dir: Path, ending: ExitStack) -> None:
    state_dir.mkdir(parents=True, exist_ok=True)
    lock = os.open(state_dir / "stack.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    ending.callback(os.close, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        message = f"another `muster up` works in {state_dir}; stop it, or give this one its own --state-dir"
        raise StackError(message) from None


def _start(
    state_dir: Path, port: int, num_gpus: int, console: Console, ending: ExitStack
) -> tuple[LocalStack, list[Child]]:
    logs = state_dir / "logs"
    logs.mkdir(exist_ok=True)
    make_secret_key_file(state_dir / "secret.key")
    database_url = _database(state_dir, console, ending)
    broker_url = _broker(state_dir, console, ending)
    _write_private(state_dir / "database.url", database_url.encode())
    migrate.upgrade(database_url)
    engine = make_engine(database_url, application_name="muster-up")
    identities = bootstrap(UnitOfWorkFactory(engine), state_dir / "keys", num_gpus=num_gpus)
    engine.dispose()
    port = _usable_port(port, console)
    api_url = f"http://127.0.0.1:{port}"
    stack = LocalStack(api_url, identities, state_dir)
    children = _children(stack, port, database_url, broker_url, num_gpus)
    (state_dir / "cli.json").unlink(missing_ok=True)
    ending.callback(stop_programs, state_dir / "host")
    ending.callback(stop_children, children)
    for child in children:
        child.start()
    _wait_ready(f"{api_url}/readyz", children, console)
    _write_profile(stack)
    ending.callback((state_dir / "cli.json").unlink, missing_ok=True)
    return stack, children


def _database(state_dir: Path, console: Console, ending: ExitStack) -> str:
    if given := os.environ.get("MUSTER_DATABASE_URL"):
        console.print("database   MUSTER_DATABASE_URL")
        return given
    server = PostgresServer(state_dir / "postgres", log_path=state_dir / "logs" / "postgres.log")
    ending.callback(server.stop)
    server.start()
    console.print(f"database   PostgreSQL {server.version} (embedded, private socket)")
    return server.url()


def _broker(state_dir: Path, console: Console, ending: ExitStack) -> str:
    if given := os.environ.get("MUSTER_BROKER_URL"):
        console.print("broker     MUSTER_BROKER_URL")
        return given
    server = BrokerServer(state_dir / "broker", log_path=state_dir / "logs" / "broker.log")
    ending.callback(server.stop)
    server.start()
    console.print(f"broker     {server.version} (embedded, private socket)")
    return server.url


def _usable_port(wanted: int, console: Console) -> int:
    if not port_is_taken(wanted):
        return wanted
    port = free_port()
    console.print(f"[yellow]port {wanted} is taken by another process; using {port}[/]")
    return port


def _children(stack: LocalStack, port: int, database_url: str, broker_url: str, num_gpus: int) -> list[Child]:
    state_dir, keys = stack.state_dir, stack.identities
    server = child_environment(
        database_url=database_url,
        broker_url=broker_url,
        secret_key_file=state_dir / "secret.key",
        api_port=port,
        state_dir=state_dir,
    )
    host = child_environment(
        api_url=stack.api_url,
        api_key_file=keys.node_key_file,
        broker_url=broker_url,
        state_dir=state_dir / "host",
    )
    logs = state_dir / "logs"
    return [
        Child("api", ["api"], server, logs / "api.log"),
        Child("scheduler", ["scheduler"], server, logs / "scheduler.log"),
        Child("worker-control", ["worker", "control"], server, logs / "worker-control.log"),
        Child("worker-host", ["worker", "host", "--node-id", keys.node_id], host, logs / "worker-host.log"),
        Child("agent", _agent_arguments(stack, num_gpus), host, logs / "agent.log"),
    ]


def _agent_arguments(stack: LocalStack, num_gpus: int) -> list[str]:
    faults = stack.state_dir / FAULTS
    if not faults.exists():
        _write_private(faults, b'{"faults": []}\n')
    return ["agent", "run", "--simulated", "h100", "--gpus", str(num_gpus), "--faults", str(faults)]


def _wait_ready(url: str, children: list[Child], console: Console) -> None:
    def answers() -> bool:
        try:
            return httpx.get(url, timeout=1.0, trust_env=False).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    _wait_until(answers, children, console, f"the API did not become ready at {url}")


def _wait_until(is_so: Callable[[], bool], children: list[Child], console: Console, otherwise: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            message = f"{otherwise}; its log: {children[0].log_path}"
            raise StackError(message)
        for child in children:
            if news := child.keep():
                console.print(f"[yellow]!![/] {news}")
        time.sleep(0.05)


def _write_profile(stack: LocalStack) -> None:
    profile = {
        "api_url": stack.api_url,
        "key_file": str(stack.identities.tenant_key_file),
        "operator_key_file": str(stack.identities.operator_key_file),
        "tenant_id": stack.identities.tenant_id,
        "faults_file": str(stack.state_dir / FAULTS),
    }
    _write_private(stack.state_dir / "cli.json", msgspec.json.format(msgspec.json.encode(profile)))


def _write_private(path: Path, content: bytes) -> None:
    draft = path.with_suffix(".draft")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)


def _say_ready(console: Console, stack: LocalStack, took_s: float) -> None:
    console.print(f"\n[bold green]Muster is up[/] after {took_s:.1f} s")
    console.print(f"  API            {stack.api_url}  (documents at /v1/docs)")
    console.print(f"  keys           {stack.identities.tenant_key_file.parent} (operator, tenant)")
    console.print("  host           local, with simulated GPUs: programs run on this machine's CPU")
    console.print("  next           .venv/bin/muster job submit --follow -- examples/hello_ranks.py")
    console.print("  stop           Ctrl-C\n")
