"""The whole control plane and its hosts on this machine, ``muster up``, until Ctrl-C.

Every process dies with this one. After a kill at any point, the next start finds its data and continues: the database
and the broker are durable, and programs that still run are adopted.
"""

import fcntl
import os
import shlex
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
import msgspec
from rich.console import Console

from control.core.unit_of_work import UnitOfWorkFactory
from local.bootstrap import FIRST_PERSON, OPERATOR, LocalIdentities, bootstrap
from local.broker import BrokerServer
from local.children import Child
from local.errors import EmbeddedServerError
from local.hosts import LocalHost, host_children, write_join_tokens
from local.local_stack import LocalStack, StackPlan
from local.postgres import PostgresServer
from local.progress import Patience, Work, work_of
from local.restarts import Keeper, Server
from local.servants import SECRET_KEYS, STORE_URL, LocalStore, embedded_store, given_store, server_children
from local.shutdown import stop_children, stop_programs
from muster.db import migrate
from muster.db.engine import make_engine
from muster.durable import write_durably
from muster.ports import free_port, port_is_taken
from muster.processes import stop_on_signals
from muster.settings import make_secret_key_file, make_secret_keys_file

READY: Final = "ready"
MAX_PORT: Final = 65_535
LAST_LINES: Final = 4
"""Lines of the log of a process that ended, which its error shows."""
Lead = Callable[[Console, LocalStack, threading.Event], bool]
"""Called with the stack once it is up, and ends when the event is set: returns whether it held."""


class StackError(Exception):
    """The stack cannot start, or did not become ready, with the reason and what to do."""


def run_stack(plan: StackPlan, *, lead: Lead | None, exit_when_steps_hold: bool) -> int:
    """Start everything, print its addresses, call ``lead``, and keep the stack until a signal.

    With ``exit_when_steps_hold`` it ends when ``lead`` has ended. Returns the exit code: 0, or 1 where it was to end
    with ``lead`` and that did not hold.

    Raises:
        StackError: another stack works in the state folder, or a process did not become ready.
        KeyboardInterrupt: a signal came before it was up.
    """
    console = Console(highlight=False)
    # A closed terminal counts as Ctrl-C.
    stop = stop_on_signals(signal.SIGHUP)
    with ExitStack() as ending:
        started = time.monotonic()
        _lock(plan.state_dir, ending)
        stack = _start(plan, console, ending, stop)
        _report_ready(console, stack, time.monotonic() - started)
        has_held = lead is None or lead(console, stack, stop)
        if exit_when_steps_hold:
            return 0 if has_held else 1
        stop.wait()
        console.print("stopping …")
    console.print("stopped; the state stays in", str(plan.state_dir))
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


def _start(plan: StackPlan, console: Console, ending: ExitStack, stop: threading.Event) -> LocalStack:
    state_dir = plan.state_dir
    (state_dir / "logs").mkdir(exist_ok=True)
    (state_dir / "cli.json").unlink(missing_ok=True)
    make_secret_key_file(state_dir / "secret.key")
    make_secret_keys_file(state_dir / SECRET_KEYS)
    servers: dict[str, Server] = {}
    database_url = _database(state_dir, servers, console, ending)
    broker_url = _broker(state_dir, servers, console, ending)
    write_durably(state_dir / "database.url", database_url.encode())
    _go_on_unless(stop)
    identities = _prepare(plan, database_url)
    port = _usable_port(plan.port, console)
    api_url = f"http://127.0.0.1:{port}"
    store = _content_store(state_dir, port, console)
    servants = server_children(plan, port, store, database_url=database_url, broker_url=broker_url)
    hosts = _host_children(plan, api_url, broker_url)
    keeper = Keeper(servers, servants, lambda words: console.print(f"[yellow]!![/] {words}", soft_wrap=True))
    stack = LocalStack(api_url, identities, plan, servers, (*servants, *hosts), keeper)
    for host in plan.hosts:
        ending.callback(stop_programs, host.folder)
    ending.callback(stop_children, stack.children)
    ending.callback(keeper.close)
    _start_all(servants)
    wait_ready(api_url, servants, servers, stop, lambda words: console.print(words, soft_wrap=True))
    keeper.start()
    _start_all(hosts)  # now: before the API answers they would only wait, with growing pauses
    keeper.watch(hosts)
    write_durably(state_dir / STORE_URL, store.url.encode())
    _write_profile(stack)
    for name in ("cli.json", STORE_URL):
        ending.callback((state_dir / name).unlink, missing_ok=True)
    return stack


def _start_all(children: Sequence[Child]) -> None:
    for child in children:
        child.start()


def _prepare(plan: StackPlan, database_url: str) -> LocalIdentities:
    """Make schema, keys, policy, and a join token for each host that has not enrolled."""
    migrate.upgrade(database_url)
    engine = make_engine(database_url, application_name="muster-up")
    try:
        units = UnitOfWorkFactory(engine)
        identities = bootstrap(units, plan.state_dir / "keys", policy=plan.policy, policy_name=plan.policy_name)
        write_join_tokens(units, OPERATOR, plan.hosts)
    finally:
        engine.dispose()
    return identities


def _database(state_dir: Path, servers: dict[str, Server], console: Console, ending: ExitStack) -> str:
    if given := os.environ.get("MUSTER_DATABASE_URL"):
        console.print("database   MUSTER_DATABASE_URL")
        return given
    server = PostgresServer(state_dir / "postgres", log_path=state_dir / "logs" / "postgres.log")
    ending.callback(server.stop)
    server.start()
    servers["database"] = server
    console.print(f"database   PostgreSQL {server.version} (embedded, private socket)")
    return server.url()


def _broker(state_dir: Path, servers: dict[str, Server], console: Console, ending: ExitStack) -> str:
    if given := os.environ.get("MUSTER_BROKER_URL"):
        console.print("broker     MUSTER_BROKER_URL")
        return given
    server = BrokerServer(state_dir / "broker", log_path=state_dir / "logs" / "broker.log")
    ending.callback(server.stop)
    server.start()
    servers["broker"] = server
    console.print(f"broker     {server.version} (embedded, private socket)")
    return server.url


def _content_store(state_dir: Path, api_port: int, console: Console) -> LocalStore:
    if (given := given_store()) is not None:
        console.print("store      MUSTER_STORE_URL")
        return given
    store = embedded_store(state_dir, _usable_port(api_port + 1 if api_port < MAX_PORT else free_port(), console))
    console.print(f"store      {store.url} (embedded, for bundles and outputs)")
    return store


def _usable_port(wanted: int, console: Console) -> int:
    if not port_is_taken(wanted):
        return wanted
    port = free_port()
    console.print(f"[yellow]port {wanted} is taken by another process; using {port}[/]")
    return port


def _host_children(plan: StackPlan, api_url: str, broker_url: str) -> list[Child]:
    faults = plan.faults
    if not faults.exists():
        write_durably(faults, b'{"faults": []}\n')
    return [
        child
        for host in plan.hosts
        for child in host_children(
            host, api_url=api_url, broker_url=broker_url, faults=faults, state_dir=plan.state_dir
        )
    ]


def _go_on_unless(stop: threading.Event) -> None:
    """Raise KeyboardInterrupt where a signal has come."""
    if stop.is_set():
        raise KeyboardInterrupt


def wait_ready(
    api_url: str,
    servants: Sequence[Child],
    servers: Mapping[str, Server],
    stop: threading.Event,
    report: Callable[[str], None],
) -> None:
    """Wait until the API, the first of ``servants``, is ready, as long as it works.

    Raises:
        StackError: one of them ended by itself, or the API hangs.
        KeyboardInterrupt: a signal has come.
    """
    url, api = f"{api_url}/readyz", servants[0]
    awaited = f"the API at {url}, whose log is {api.log_path}"
    starting = Patience(awaited, lambda: Work() if api.pid is None else work_of(api.pid), report=report)
    answer, answering = "", Patience(awaited, Work)
    # One client for all polls: to make one reads the system's certificates, 25 ms of CPU that the API needs to start.
    with httpx.Client(timeout=1.0, trust_env=False) as client:
        while (said := _answer(client, url)) != READY:
            _go_on_unless(stop)
            _require_running(servants, servers)
            if said and said != answer:
                answer, answering = said, Patience(f"{awaited}, which answers {said}", Work, report=report)
            # Once it answers, our own requests make it work: then only another answer is progress.
            _require_progress(answering if said else starting)
            time.sleep(0.05)


def _require_progress(patience: Patience) -> None:
    try:
        patience.require_progress()
    except EmbeddedServerError as fault:
        raise StackError(str(fault)) from fault


def _require_running(servants: Sequence[Child], servers: Mapping[str, Server]) -> None:
    if ended := [name for name, server in servers.items() if not server.is_running()]:
        raise StackError(f"the {ended[0]} ended before the stack was up")
    for child in servants:
        if (how := child.how_it_ended) is not None:
            last = " | ".join(child.log_path.read_text(errors="replace").splitlines()[-LAST_LINES:])
            raise StackError(f"{child.name} ended ({how}) before the stack was up; {child.log_path} ends: {last}")


def _answer(client: httpx.Client, url: str) -> str:
    """Return READY, the text of another answer, or nothing where none came."""
    try:
        answer = client.get(url)
    except httpx.HTTPError:
        return ""
    return READY if answer.status_code == httpx.codes.OK else f"{answer.status_code}: {answer.text[:200]}"


def _write_profile(stack: LocalStack) -> None:
    profile = {
        "api_url": stack.api_url,
        "key_file": str(stack.identities.tenant_key_file),
        "operator_key_file": str(stack.identities.operator_key_file),
        "tenant_id": stack.identities.tenant_id,
        "faults_file": str(stack.plan.faults),
    }
    write_durably(stack.plan.state_dir / "cli.json", msgspec.json.format(msgspec.json.encode(profile)))


def _report_ready(console: Console, stack: LocalStack, took_s: float) -> None:
    hosts = ", ".join(f"{host.name} ({_gpu_words(host)})" for host in stack.plan.hosts)
    console.print(f"\n[bold green]Muster is up[/] after {took_s:.1f} s")
    console.print(f"  API            {stack.api_url}  (documents at /v1/docs)")
    console.print(f"  console        {stack.api_url}/console  ({_sign_in_words(stack)})", soft_wrap=True)
    console.print(f"  keys           {stack.identities.tenant_key_file.parent} (operator, tenant)")
    console.print(f"  hosts          {hosts}", soft_wrap=True)
    console.print(f"  policy         {stack.plan.policy_name}")
    command = stack.plan.command
    console.print(f"  look           {command} gpu list", soft_wrap=True, highlight=False)
    console.print(f"  next           {command} job submit --follow -- {_example()}", soft_wrap=True, highlight=False)
    console.print("  stop           Ctrl-C\n")


def _example() -> str:
    """Return the path of the first example as it is typed in this folder."""
    path, here = Path(__file__).parents[1] / "examples" / "hello_ranks.py", Path.cwd()
    return shlex.quote(str(path.relative_to(here) if here in path.parents else path))


def _sign_in_words(stack: LocalStack) -> str:
    password = stack.identities.operator_password
    if password is None:
        return f"sign in as {FIRST_PERSON}; forgotten: {stack.plan.command} person reset-password {FIRST_PERSON}"
    return f"sign in as {FIRST_PERSON}, password {password}: shown once, keep it"


def _gpu_words(host: LocalHost) -> str:
    if host.model is None:
        return "this machine's GPUs, by NVML"
    return f"{host.num_gpus} simulated {host.model.upper()}"
