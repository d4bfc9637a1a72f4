"""The services of the compose file as processes of this machine, where there is no container engine.

Taken from the file: entry points, commands, environments, health checks, volumes, order. Put in their place: folders
for volumes and images, ports of this machine for the services' names, this machine's PostgreSQL and broker for theirs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import Final

from local.binaries import find_broker, find_postgres
from local.processes import ServerProcess
from muster.ports import free_port
from tests.deploy.compose_file import ROOT, Service, in_order, read_compose, services_of
from tests.deploy.dockerfile import read_dockerfile
from tests.docs.places import put_in
from tests.tcp_postgres import TcpPostgres
from tests.waiting import wait_until
from tests.warm_python import WarmPython

BIN: Final = Path(sys.executable).parent
PATIENCE_S: Final = 240.0
_PORTS: Final = ("5432", "6379", "8420", "8421")
_OWN_PATHS: Final = {
    "/var/lib/muster/host": "MUSTER_STATE_DIR",
    "/var/lib/muster/checkpoints": "MUSTER_CHECKPOINTS_DIR",
}
"""Paths in the hosts' settings that are another folder in each container: given to each by its environment here."""


class ServiceFailedError(AssertionError):
    """A service ended with another status than 0; says its last words."""


class Machine:
    """Everything of one run below ``folder``. Start it with ``running_services``.

    What stays is started as it is. What is run to its end (a one-shot, a health check, the CLI) finds the
    ``muster`` of the folder ``programs``. ``job_python``: the interpreter with torch, for the hosts' jobs.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str], programs: Path, job_python: Path) -> None:
        self.folder = folder
        self._programs = programs
        self._job_python = job_python
        self.document = read_compose(variables)
        self.services = services_of(self.document)
        self.ports = {port: str(free_port()) for port in _PORTS}
        self.processes: dict[str, ServerProcess] = {}
        for image in {str(each.table["build"]["dockerfile"]) for each in self.services.values() if each.is_ours}:
            self._lay_out(ROOT / image)
        for volume in self.document["volumes"]:
            (folder / "volumes" / volume).mkdir(parents=True)

    def _lay_out(self, dockerfile: Path) -> None:
        """What the final stage copies from the build context, where it says."""
        for copy in read_dockerfile(dockerfile)[-1].copies:
            if copy.stage is None:
                for source, target in copy.placed(self.folder / "image", ROOT):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    if source.is_dir():
                        shutil.copytree(source, target, dirs_exist_ok=True)
                    else:
                        shutil.copyfile(source, target)

    def local(self, service: Service, text: str) -> str:
        """``text`` with this machine's folders and ports in place of the container's: each place once."""
        places = {target: self.folder / "volumes" / source for target, (source, _) in service.mounts.items()}
        places = {**self._parents(service, places), **places}
        places["/opt/muster"] = self.folder / "image/opt/muster"
        places["/tmp"] = self._scratch(service)  # noqa: S108  # the container's own
        found: dict[str, str] = {path: str(place) for path, place in places.items()}
        found |= {f"{name}:{port}": f"127.0.0.1:{self.ports[port]}" for name, port in _addresses()} | self.ports
        return put_in(text, found)

    def _parents(self, service: Service, places: Mapping[str, Path]) -> dict[str, Path]:
        """The folders in which the mounts of a service lie, with a link to each mount."""
        parents: dict[str, Path] = {}
        for target, place in places.items():
            parent = str(PurePosixPath(target).parent)
            parents[parent] = folder = self._scratch(service) / "parents" / parent.lstrip("/")
            folder.mkdir(parents=True, exist_ok=True)
            link = folder / PurePosixPath(target).name
            if not link.is_symlink() and not link.exists():
                link.symlink_to(place)
        return parents

    def _scratch(self, service: Service) -> Path:
        scratch = self.folder / "scratch" / service.name
        scratch.mkdir(parents=True, exist_ok=True)
        return scratch

    def environment(self, service: Service) -> dict[str, str]:
        """What a container would have, and nothing of this process's settings."""
        inherited = {name: os.environ[name] for name in ("LANG", "LC_ALL") if name in os.environ}
        given = {name: self.local(service, value) for name, value in service.environment.items()}
        if service.is_ours:
            given |= {"PATH": f"{BIN}:{os.defpath}", "PYTHONUNBUFFERED": "1", "ADDRESS": "127.0.0.1"}
            given |= {"MUSTER_JOB_PYTHON": str(self._job_python)}
        for target in service.mounts:
            if target in _OWN_PATHS:
                given[_OWN_PATHS[target]] = self.local(service, target)
        return {**inherited, "HOME": str(self._scratch(service)), **given}

    def run(self, service: Service, *words: str) -> subprocess.CompletedProcess[str]:
        """To its end; ``words`` take the command's place, as after `docker compose run SERVICE`."""
        entrypoint = service.table.get("entrypoint", ["muster"])
        argv = [*entrypoint, *words] if words else service.argv
        return self._typed(service, [self.local(service, word) for word in argv])

    def _typed(self, service: Service, argv: list[str]) -> subprocess.CompletedProcess[str]:
        """Run words of this machine: a path of the checkout is none of the container's, wherever the checkout is."""
        environment = self.environment(service)
        if service.is_ours:
            environment["PATH"] = f"{self._programs}:{environment['PATH']}"
            argv = [str(self._programs / "muster"), *argv[1:]] if argv[0] == "muster" else argv
        return subprocess.run(
            argv,
            env=environment,
            cwd=self.folder / "image/opt/muster",
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    def configure(self, service: Service) -> None:
        """The files that Compose would mount into it."""
        for config in service.table.get("configs", []):
            source = ROOT / self.document["configs"][config["source"]]["file"]
            target = Path(self.local(service, config["target"]))
            target.parent.mkdir(parents=True, exist_ok=True)
            text = source.read_text(encoding="utf-8")
            target.write_text(re.sub(r'"[^"]+"', lambda match: self.local(service, match[0]), text), encoding="utf-8")

    def start(self, service: Service) -> None:
        """Until its health check says yes, or, of a one-shot, until it has ended well."""
        if service.is_one_shot:
            answer = self.run(service)
            if answer.returncode != 0:
                raise ServiceFailedError(f"{service.name}: {answer.returncode}\n{answer.stdout}\n{answer.stderr}")
            return
        start = self._start_postgres if service.name == "postgres" else self._start_process
        self.processes[service.name] = start(service)
        wait_until(lambda: self.is_healthy(service), timeout_s=PATIENCE_S, pause_s=0.2)

    def is_healthy(self, service: Service) -> bool:
        """Raises ServiceFailedError where it has ended."""
        if not self.processes[service.name].is_running():
            last = (self.folder / f"{service.name}.log").read_text(errors="replace")[-2000:]
            raise ServiceFailedError(f"{service.name} ended:\n{last}")
        command = [self.local(service, word) for word in service.health_command or ()]
        if command[0] == "redis-cli":
            return self._redis_answers(command)
        if command[0] == "pg_isready":
            command[0] = str(find_postgres().directory / "pg_isready")
        return self._typed(service, command).returncode == 0

    def _redis_answers(self, command: list[str]) -> bool:
        """Run `redis-cli -p PORT ping`, which none of our packages brings."""
        import redis  # noqa: PLC0415

        _, flag, port, word = command
        assert (flag, word) == ("-p", "ping")
        try:
            with redis.Redis(port=int(port)) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def _start_postgres(self, service: Service) -> ServerProcess:
        """As the image's entry point does: the cluster once, by its variables, then the command."""
        variables = self.environment(service)
        server = TcpPostgres(
            Path(variables["PGDATA"]),
            port=self.ports["5432"],
            superuser=variables["POSTGRES_USER"],
            password=Path(variables["POSTGRES_PASSWORD_FILE"]).read_text(),
        )
        server.make(variables["POSTGRES_INITDB_ARGS"].split())
        log = self.folder / "postgres.log"
        return server.start(log, options=service.argv[1:], variables=variables)

    def _start_process(self, service: Service) -> ServerProcess:
        program, *words = (self.local(service, word) for word in service.argv)
        return ServerProcess(
            [str(find_broker().path if service.name == "redis" else BIN / program), *words],
            owner=None,
            death_signal=signal.SIGTERM,
            log_path=self.folder / f"{service.name}.log",
            working_dir=self.folder / "image/opt/muster",
            variables=self.environment(service),
        )

    def stop(self) -> None:
        for process in reversed(self.processes.values()):
            process.end((signal.SIGTERM, 20.0), (signal.SIGINT, 20.0))

    def restart(self, name: str) -> None:
        self.processes.pop(name).end((signal.SIGTERM, 20.0))
        self.start(self.services[name])


def _addresses() -> list[tuple[str, str]]:
    return [("postgres", "5432"), ("redis", "6379"), ("api", "8420"), ("store", "8421")]


@contextmanager
def running_services(
    folder: Path, variables: Mapping[str, str], warm: WarmPython, jobs: WarmPython
) -> Iterator[Machine]:
    """Everything but what has a profile, in the order of its needs, each healthy before what needs it."""
    machine = Machine(folder, variables, warm.command("muster"), jobs.daemon)
    with ExitStack() as ending:
        ending.callback(machine.stop)
        for service in in_order(machine.services):
            machine.configure(service)
            if not service.table.get("profiles"):
                machine.start(service)
                if service.name == "postgres":
                    _make_database(machine, service)
        yield machine


def _make_database(machine: Machine, service: Service) -> None:
    """POSTGRES_DB, which the image's entry point makes."""
    import psycopg  # noqa: PLC0415

    password = (machine.folder / "volumes/database-secret/password").read_text().strip()
    user, port = service.environment["POSTGRES_USER"], machine.ports["5432"]
    with psycopg.connect(
        host="127.0.0.1", port=port, user=user, password=password, dbname="postgres", autocommit=True
    ) as connection:
        connection.execute("CREATE DATABASE muster")
