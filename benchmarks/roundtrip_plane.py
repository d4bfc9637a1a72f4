"""A control plane with a content store, each a process, and hosts of it with folders of their own.

The hosts' processes are the product's own, by the orders that a launcher and a supervisor give. Only heartbeats and
claims are sent by this process: no program runs.
"""

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
from sqlalchemy import select

from benchmarks.console_stage import wait_for
from control.core.unit_of_work import UnitOfWorkFactory
from control.hosts.node_labels import LABEL, set_labels
from control.jobs import jobs
from control.tenants import keys, tenants
from local.children import Child, child_environment
from local.postgres import PostgresServer
from muster.client.rest import RestClient
from muster.client.uploads import Uploading
from muster.content.read import Bundle, read_folder
from muster.db import migrate
from muster.db.models import Attempt, Job
from muster.domain.ids import AttemptId, JobId, TenantId
from muster.domain.job.spec import JobSpec
from muster.domain.principals import Principal, Role, system_principal
from muster.ports import free_port
from muster.settings import load_settings, make_secret_key_file
from muster.store.key_file import make_key_file
from muster.store.objects import ObjectStore
from muster.wire.host import HOST_CAPABILITIES, HeartbeatAnswer, PreflightReport
from tests.played_host import PlayedHost, played_host
from workers.control.scheduler_loop import run_cycle
from workers.host.content.fetch_order import EnvironmentOrder, FetchOrder

BUCKET: Final = "muster"
API: Final = "api"
STORE: Final = "store"
_OPERATOR: Final = Principal(name="operator:bench", role=Role.OPERATOR)
_PREFLIGHTS: Final = "look"
_CLAIMS: Final = frozenset(HOST_CAPABILITIES) - {"ready", _PREFLIGHTS}
"""A played host starts as its claim is granted."""
_FOR: Final = "for"
"""Label of a host: the job that it is for."""


@dataclass(frozen=True, slots=True)
class Member:
    """A tenant with the key of one of its members."""

    tenant_id: TenantId
    token: str
    url: str

    def upload(self, folder: Path) -> Bundle:
        """Upload a work folder, as the command does it."""
        bundle = read_folder(folder)
        with RestClient(self.url, self.token) as client:
            Uploading(client, folder, bundle).run()
        return bundle


@dataclass(frozen=True, slots=True)
class Host:
    """A host with a key. ``folder``: for its state folders. ``capabilities``: that its heartbeats list."""

    node: PlayedHost
    key_file: Path
    folder: Path
    capabilities: tuple[str, ...]

    def beat(self, *ended: PreflightReport) -> HeartbeatAnswer:
        return self.node.beat(capabilities=self.capabilities, checks=ended)


@dataclass(frozen=True, slots=True)
class Part:
    """A host's part of an attempt that runs, or of a preflight: a job with an environment has one first."""

    host: Host
    attempt_id: str
    fence: int
    tenant_id: TenantId
    url: str

    @property
    def state_dir(self) -> Path:
        """Return a folder as of a host that has had no other part."""
        return self.host.folder / self.attempt_id

    def order(self, state_dir: Path, digest: str, environment: EnvironmentOrder | None = None) -> FetchOrder:
        """Return what a supervisor gives the process that makes the attempt's folder below ``state_dir``."""
        (state_dir / "attempts" / self.attempt_id).mkdir(parents=True, exist_ok=True)
        return FetchOrder(
            digest=digest,
            tenant_id=self.tenant_id,
            part_id=self.attempt_id,
            fence=self.fence,
            folder=str(state_dir / "work" / self.attempt_id),
            content_dir=str(state_dir / "content"),
            attempts_dir=str(state_dir / "attempts"),
            cache_bytes=64 << 30,
            free_bytes=0,
            are_linked=True,  # as where each job has a user of its own
            owner=None,
            api_url=self.url,
            key_file=str(self.host.key_file),
            environment=environment,
        )


@dataclass(slots=True)
class Plane:
    """The running control plane. ``variables``: of its processes, by their names."""

    folder: Path
    url: str
    units: UnitOfWorkFactory
    store: ObjectStore
    variables: Mapping[str, dict[str, str]]
    _children: dict[str, Child] = field(default_factory=dict)
    _num_made: int = 0
    _builder: Host | None = None
    _open_preflight: str = ""

    def pid(self, name: str) -> int:
        return self._children[name].pid or 0

    def start(self, name: str, failpoints: str = "") -> None:
        """Start the API or the store, in place of the one that runs or was killed. ``failpoints``: that are armed."""
        self.stop(name)
        words = ["store", "serve"] if name == STORE else ["api"]
        variables = {**self.variables[name], "MUSTER_FAILPOINTS": failpoints}
        child = Child(name, words, variables, self.folder / f"{name}.log")
        self._children[name] = child
        child.start()
        wait_for(self.variables[name]["HEALTH"])

    def stop(self, name: str) -> None:
        if (child := self._children.pop(name, None)) is not None:
            child.stop()

    def wait_killed(self, name: str, within_s: float) -> None:
        """Wait until a process has killed itself. Raises RuntimeError: it has not, or ended otherwise."""
        child, until_s = self._children[name], time.monotonic() + within_s
        while child.is_running() and time.monotonic() < until_s:
            time.sleep(0.02)
        if child.how_it_ended != "signal SIGKILL":
            raise RuntimeError(f"{name} was not killed: {child.how_it_ended or 'it runs'}")

    def new_member(self) -> Member:
        """Make a tenant, of whose content the store has nothing."""
        name = self._new_name("tenant")
        with self.units.begin(_OPERATOR, tenants.CREATE) as unit:
            tenant_id = tenants.create(unit, name=name).id
        with self.units.begin(_OPERATOR, keys.CREATE) as unit:
            made = keys.create(unit, name=name, role=Role.TENANT_MEMBER, tenant_id=tenant_id)
        return Member(tenant_id, made.token.text, self.url)

    def parts(self, member: Member, digest: str, num_hosts: int = 1, **spec: Any) -> list[Part]:
        """Submit a job with a bundle, and place it on as many new hosts, which claim their parts."""
        hosts = [self._new_host(_CLAIMS) for _ in range(num_hosts)]
        label = f"job-{self._num_made}"
        for host in hosts:
            with self.units.begin(_OPERATOR, LABEL) as unit:
                set_labels(unit, host.node.node_id, {_FOR: label}, reason="the hosts of one job")
        shape = {"nodes": num_hosts, "gpus_per_node": 2}
        job_id = self._submit(member, digest, shape=shape, node_labels={"required": {_FOR: [label]}}, **spec)
        return [self._claimed(host, member, job_id) for host in hosts]

    def preflight(self, member: Member, digest: str, lock: str) -> Part:
        """Submit a job with a bundle and an environment. Return the preflight that gets both on the one host for it."""
        if self._builder is None:
            self._builder = self._new_host(_CLAIMS | {_PREFLIGHTS})
        self._builder.beat()
        program = {"environment": {"lock": lock}}
        job_id = self._submit(member, digest, program=program, shape={"nodes": 1, "gpus_per_node": 2})
        ordered = [one for one in self._builder.beat().preflights if one.order.job_id == job_id]
        if not ordered:
            raise RuntimeError("the host got no preflight of the job")
        found = Part(self._builder, ordered[0].order.attempt_id, ordered[0].order.fence, member.tenant_id, self.url)
        self._open_preflight = found.attempt_id
        return found

    def _submit(self, member: Member, digest: str, **spec: Any) -> JobId:
        program = {"launcher": "command", "argv": ["python", "main.py"], "bundle": digest, **spec.pop("program", {})}
        document = {"name": "job", "program": program, **spec}
        principal = Principal(name="member", role=Role.TENANT_MEMBER, tenant_id=member.tenant_id)
        self._cancel_all()
        with self.units.begin(principal, jobs.SUBMIT) as unit:
            job_id = jobs.submit(unit, JobSpec.model_validate(document, strict=False)).id
        run_cycle(self.units, system_principal("scheduler"))
        return job_id

    def _cancel_all(self) -> None:
        """Cancel each job from before, also one that a command submitted: it would take the hosts of the next one.

        Report the end of the last preflight: a host has only a few at a time.
        """
        if self._builder is not None and self._open_preflight:
            self._builder.beat(PreflightReport(preflight_id=self._open_preflight, found="fit"))
            self._open_preflight = ""
        with self.units.read() as session:
            is_left = Job.finished_at.is_(None) & Job.cancel_requested_at.is_(None)
            left = session.scalars(select(Job.id).where(is_left).order_by(Job.id)).all()
        for job_id in left:
            with self.units.begin(_OPERATOR, jobs.CANCEL) as unit:
                jobs.cancel(unit, job_id, reason="its part is over")

    def _claimed(self, host: Host, member: Member, job_id: JobId) -> Part:
        """Claim the host's part of the job, and of no other."""
        for found in host.beat().unclaimed:
            with self.units.read() as session:
                is_of_job = session.get_one(Attempt, AttemptId(found.attempt_id)).job_id == job_id
            if is_of_job:
                host.node.claim(found.attempt_id, found.fence)
                return Part(host, found.attempt_id, found.fence, member.tenant_id, self.url)
        raise RuntimeError(f"{host.node.node_id} got no part of the job")

    def _new_host(self, capabilities: frozenset[str]) -> Host:
        name = self._new_name("host")
        node = played_host(self.units, name)
        with self.units.begin(_OPERATOR, keys.CREATE) as unit:
            token = keys.create(unit, name=name, role=Role.NODE, node_id=node.node_id).token.text
        folder = self.folder / name
        folder.mkdir()
        key_file = folder / "node.key"
        key_file.write_text(token)
        key_file.chmod(0o600)
        host = Host(node, key_file, folder, tuple(sorted(capabilities)))
        host.beat()
        return host

    def _new_name(self, kind: str) -> str:
        self._num_made += 1
        return f"{kind}-{self._num_made}"


def start_fetch(order: FetchOrder, *, failpoints: str = "") -> "subprocess.Popen[str]":
    """Start the process that a supervisor starts."""
    asked = os.memfd_create("asked", 0)
    os.write(asked, msgspec.json.encode(order))
    os.lseek(asked, 0, os.SEEK_SET)
    command = [sys.executable, "-I", "-m", "workers.host.content.fetch_process", str(asked)]
    environment = {"PATH": os.environ["PATH"], "MUSTER_FAILPOINTS": failpoints}
    try:
        return subprocess.Popen(  # noqa: S603  # our own module
            command, env=environment, cwd="/", stdout=subprocess.PIPE, text=True, pass_fds=[asked]
        )
    finally:
        os.close(asked)


def end_of(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Return the last line of a process that a supervisor starts. Raises RuntimeError: it is not that it is done."""
    lines = process.communicate(timeout=300)[0].splitlines()
    last: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if not last.get("is_done"):
        raise RuntimeError(f"a host's process ended with {process.returncode}: {lines[-1:]}")
    return last


_shared = contextlib.ExitStack()
atexit.register(_shared.close)
_planes: list[Plane] = []


def shared_plane() -> Plane:
    """Return the one control plane of this process, which ends with it."""
    if not _planes:
        _planes.append(_shared.enter_context(_plane()))
    return _planes[0]


@contextmanager
def _plane() -> Iterator[Plane]:
    with tempfile.TemporaryDirectory(prefix="muster-roundtrip-") as name, ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o711)
        postgres = PostgresServer(folder / "postgres")
        postgres.start()
        stack.callback(postgres.stop)
        migrate.upgrade(postgres.url())
        units = UnitOfWorkFactory.connected(
            postgres.url(), application_name="muster-bench", pool_size=1, max_overflow=1
        )
        stack.callback(units.close)
        variables = _variables(folder, postgres.url())
        store = ObjectStore.from_settings(load_settings(variables[API]))
        if store is None:
            raise RuntimeError("the settings name no store")
        plane = Plane(folder, f"http://127.0.0.1:{variables[API]['MUSTER_API_PORT']}", units, store, variables)
        for process in (STORE, API):
            plane.start(process)
            stack.callback(plane.stop, process)
        yield plane


def _variables(folder: Path, database_url: str) -> dict[str, dict[str, str]]:
    secret_key, store_keys = folder / "secret.key", folder / "store.keys"
    make_secret_key_file(secret_key)
    make_key_file(store_keys)
    store_port, api_port = free_port(), free_port()
    store_url = f"http://127.0.0.1:{store_port}"
    of_store = child_environment(
        store_key_file=store_keys, store_dir=folder / "store", store_port=store_port, store_reserve_bytes=0
    )
    of_api = child_environment(
        database_url=database_url,
        secret_key_file=secret_key,
        api_port=api_port,
        store_url=store_url,
        store_bucket=BUCKET,
        store_key_file=store_keys,
    )
    return {
        STORE: {**of_store, "HEALTH": f"{store_url}/healthz"},
        API: {**of_api, "HEALTH": f"http://127.0.0.1:{api_port}/readyz"},
    }
