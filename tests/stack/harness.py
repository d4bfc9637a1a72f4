"""The control plane and a host as real processes, each of which may be killed at any named point.

Programs leave a line in a witness file when they start and when they end, so that a second run of anything shows.
"""

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from control.core.sealer import verify_audit
from control.core.unit_of_work import UnitOfWorkFactory
from local.bootstrap import bootstrap, key_file
from local.broker import BrokerServer
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.client.rest import RestClient
from muster.client.transport import Problem, UnreachableError
from muster.db import migrate
from muster.db.engine import make_engine
from muster.db.models import AllocationGpu, Event, Node
from muster.documents import JobDetail
from muster.domain.policy.document import ContactPolicy, DispatchPolicy, Policy
from muster.domain.principals import Role
from muster.domain.states import AllocationState, Contact
from muster.ports import free_port
from muster.settings import make_secret_key_file, make_secret_keys_file
from tests.fleet_factory import ENDS_AT_ITS_FAULT, enrol_host
from tests.patient import PATIENT
from tests.waiting import wait_until
from tests.warm_python import WarmPython

POLICY: Final = Policy(
    contact=ContactPolicy(
        heartbeat_s=0.5,
        silent_after_s=1.5,
        lost_after_s=3.0,
        agent_lease_s=120.0,  # longer than many starts of the API on a busy machine
        server_lease_extra_s=4.0,
        kill_grace_s=1.0,
        lease_margin_s=1.0,
        no_expiry_after_start_s=2.0,
    ),
    dispatch=DispatchPolicy(
        wake_again_s=1.0, place_again_s=30.0, retry_backoff_s=0.5, retry_backoff_max_s=1.0, stop_grace_s=2.0
    ),
)
NAMES: Final = ("api", "scheduler", "worker-control", "worker-host")
PROGRAM: Final = """
import os, sys, time
def say(word):
    line = f"{word} {os.environ['MUSTER_ATTEMPT_ID']} {time.monotonic()}\\n"
    fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode()); os.close(fd); print(word, flush=True)
is_again = os.path.exists(sys.argv[1])
say("start"); time.sleep(float(sys.argv[3 if is_again else 2])); say("end")
"""


class Stack:
    """Start it with ``running_stack``. ``job_python``: the interpreter with torch, for the host's jobs."""

    def __init__(
        self, folder: Path, python: Path, job_python: Path, policy: Policy = POLICY, *, num_gpus: int = 8
    ) -> None:
        self.folder = folder
        self.python = python
        self.job_python = job_python
        self.policy = policy
        self.num_gpus = num_gpus
        self.postgres = PostgresServer(folder / "postgres")
        self.broker = BrokerServer(folder / "broker")
        self.port = free_port()
        self.children: dict[str, Child] = {}
        self.kills: dict[str, int] = dict.fromkeys(NAMES, 0)
        self.armed: dict[str, list[str]] = {}

    def start(self) -> None:
        self.postgres.start()
        self.broker.start()
        make_secret_key_file(self.folder / "secret.key")
        make_secret_keys_file(self.folder / "secrets.key")
        migrate.upgrade(self.postgres.url())
        self.engine = make_engine(self.postgres.url(), limits=PATIENT)
        self.units = UnitOfWorkFactory(self.engine)
        keys = self.folder / "keys"
        self.identities = bootstrap(self.units, keys, policy=self.policy, policy_name="timers of the tests")
        self.node_id = enrol_host(self.units, "local", num_gpus=self.num_gpus, rack="rack-1")
        self.node_key_file = key_file(self.units, keys / "node.key", Role.NODE, node_id=self.node_id)
        for name in NAMES:
            self.spawn(name)
        self.client = RestClient(f"http://127.0.0.1:{self.port}", self.identities.tenant_key_file.read_text().strip())
        self.wait(lambda: self.client.whoami() is not None)

    def spawn(self, name: str, *, failpoints: str = "") -> Child:
        """Start one process, perhaps with a failpoint armed."""
        arguments = ["worker", "host", "--node-id", self.node_id] if name == "worker-host" else name.split("-")
        shared: dict[str, str | int | Path] = {"broker_url": self.broker.url, "failpoints": failpoints}
        if name == "worker-host":
            url = f"http://127.0.0.1:{self.port}"
            shared |= {"api_url": url, "api_key_file": self.node_key_file, "state_dir": self.folder / "host"}
            shared |= {"job_python": self.job_python}
        else:
            shared |= {"database_url": self.postgres.url(), "secret_key_file": self.folder / "secret.key"}
            shared |= {"api_port": self.port}
            if name == "api":
                shared |= {"secret_keys_file": self.folder / "secrets.key"}
        child = Child(name, arguments, child_environment(**shared), self.folder / f"{name}.log", str(self.python))
        child.start()
        self.children[name] = child
        return child

    def kill(self, name: str) -> None:
        pid = self.children[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    def kill_supervisor(self, job_id: str) -> None:
        """Of the job's newest attempt, once it runs."""
        attempt_id = self.client.job(job_id)["attempts"][-1]["id"]
        identity = json.loads((self.folder / "host" / "attempts" / attempt_id / "supervisor.json").read_text())
        os.kill(identity["pid"], signal.SIGKILL)

    def keep(self) -> None:
        """Start again whatever has died, with its next failpoint armed where it has one."""
        for name, child in list(self.children.items()):
            if not child.is_running():
                self.kills[name] += 1
                points = self.armed.get(name)
                self.spawn(name, failpoints=f"{points.pop(0)}=kill@1" if points else "")

    def stop(self) -> None:
        for child in self.children.values():
            child.stop()
        self.client.close()
        self.engine.dispose()
        self.broker.stop()
        self.postgres.stop()

    def wait(self, is_so: Callable[[], bool], *, timeout_s: float = 240.0) -> None:
        """Until it is so, keeping the processes alive; what cannot be asked just now is not so yet."""

        def requested() -> bool:
            self.keep()
            try:
                return is_so()
            except (Problem, UnreachableError):
                return False

        wait_until(requested, timeout_s=timeout_s, pause_s=0.1)

    def submit(self, name: str, *, seconds: float = 0.3, key: str | None = None, **spec: Any) -> str:
        """Under one idempotency key until it is answered. ``seconds``: of its first run; any later one is short."""
        witness = self.folder / f"{name}.witness"
        program = {"launcher": "command", "argv": [sys.executable, "-c", PROGRAM, str(witness), str(seconds), "0.3"]}
        body = {"name": name, "program": program, **ENDS_AT_ITS_FAULT, **spec}
        made: list[str] = []

        def is_accepted() -> bool:
            made.append(self.client.submit_job(body, idempotency_key=key or name)["id"])
            return True

        self.wait(is_accepted)
        return made[0]

    def wait_for(self, job_id: str, state: str, *, timeout_s: float = 240.0) -> JobDetail:
        self.wait(lambda: self.client.job(job_id)["state"] == state, timeout_s=timeout_s)
        return self.client.job(job_id)

    def witness(self, name: str) -> list[str]:
        path = self.folder / f"{name}.witness"
        return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_start(self, name: str) -> None:
        self.wait(lambda: "start" in self.witness(name))

    def is_host_live(self) -> bool:
        with self.units.read() as session:
            return session.scalars(select(Node.contact)).one() is Contact.LIVE

    def num_taken_gpus(self) -> int:
        with self.units.read() as session:
            taken = select(AllocationGpu).where(AllocationGpu.state != AllocationState.RELEASED)
            return len(session.scalars(taken).all())

    def require_order(self) -> None:
        """What must hold after whatever was killed: no GPU held, audit whole, events without a gap."""
        self.wait(lambda: self.num_taken_gpus() == 0)
        self.wait(lambda: self._num_unsequenced() == 0)
        with self.units.read() as session:
            assert verify_audit(session).ok
            positions = list(
                session.scalars(select(Event.position).where(Event.position.is_not(None)).order_by(Event.position))
            )
        assert positions == list(range(1, len(positions) + 1))

    def _num_unsequenced(self) -> int:
        with self.units.read() as session:
            return len(session.scalars(select(Event.id).where(Event.position.is_(None))).all())


def own_folder(server_folder: Path, name: str) -> Path:
    """A new one: a worker may come to a module twice."""
    folder = server_folder / f"{name}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(mode=0o711)
    return folder


@contextmanager
def running_stack(
    folder: Path, warm: WarmPython, jobs: WarmPython, policy: Policy = POLICY, *, num_gpus: int = 8
) -> Iterator[Stack]:
    """Its processes are forks of ``warm``, its jobs of ``jobs``: a test of what survives a death starts dozens."""
    stack = Stack(folder, warm.daemon, jobs.daemon, policy, num_gpus=num_gpus)
    stack.start()
    try:
        yield stack
    finally:
        stack.stop()


def processes_marked(text: str) -> list[int]:
    """Living processes whose command line holds ``text``."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


def gone_within(text: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while processes_marked(text):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
