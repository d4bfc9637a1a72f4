"""A machine on which `docs/install.md` is typed: folders for its places, ports for its servers, no root, no systemd."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local.binaries import find_broker
from local.processes import ServerProcess
from local.shutdown import stop_programs
from muster.ports import free_port
from tests.docs import systemctl
from tests.docs.places import put_in
from tests.docs.reader import Reader
from tests.tcp_postgres import TcpPostgres
from tests.waiting import wait_until
from tests.warm_python import WarmPython

ROOT: Final = Path(__file__).resolve().parents[2]
BIN: Final = Path(sys.executable).parent
ENVIRONMENT: Final = ("lib", "pyvenv.cfg")
"""What makes a folder a Python environment, next to `bin`: without the last, its interpreter is that of the system."""
COMMAND: Final = """\
#!/bin/sh
case "$1 $2" in "api "*|"scheduler "*|"store serve"|"worker "*|"agent run") exec {installed} "$@";; esac
exec {warm} -m muster "$@"
"""
"""A release's `muster`: a process that stays is started as it is, and one that runs to its end is a warm fork."""
FOLDERS: Final = ("/etc", "/opt/muster", "/usr/local/bin", "/var/lib/muster", "/mnt/checkpoints")
RELEASES: Final = ("0.1.0", "0.2.0")
SUPERUSER: Final = "postgres"
PASSWORD: Final = "of the machine's administrator"
SHIMS: Final = {
    # As root does it, without another user: what is asked of `-u postgres` gets that user's way in.
    "sudo": """\
[ "$1" != -u ] || { [ "$2" != postgres ] || export PGUSER="$2"; shift 2; }
exec env "$@"
""",
    "install": 'for word; do shift; case $word in --owner=*|--group=*) ;; *) set -- "$@" "$word";; esac; done\n'
    'exec /usr/bin/install "$@"\n',
    "chown": "",
    "chgrp": "",
}


class Installation:
    """``root`` stands for /. Start it with ``installation``."""

    def __init__(self, root: Path, command_python: Path, job_python: Path) -> None:
        self.root = root
        self._command_python = command_python
        self._job_python = job_python
        self.ports = {port: str(free_port()) for port in ("5432", "6379", "8420", "8421")}
        self.places = {path: f"{root}{path}" for path in FOLDERS}
        self.places |= {"/etc/systemd/system": str(root / "systemd/units")}
        self.places |= {f"muster.example:{port}": f"127.0.0.1:{here}" for port, here in self.ports.items()}
        self.places |= self.ports
        self._lay_out()

    def _lay_out(self) -> None:
        for place in (*self.places.values(), f"{self.root}/etc/redis", f"{self.root}/etc/ssl"):
            if place.startswith("/"):
                Path(place).mkdir(parents=True, exist_ok=True)
        for name in ("run", "log"):
            (self.root / "systemd" / name).mkdir()
        (self.root / "opt/muster/torch/bin").mkdir(parents=True)
        (self.root / "opt/muster/torch/bin/python").symlink_to(self._job_python)
        for release in RELEASES:
            self._release(self.root / "opt/muster" / release)
        self._unit("redis-server", f"{find_broker().path} {self.root}/etc/redis/redis.conf")
        (self.root / "etc/redis/redis.conf").write_text(f'port {self.ports["6379"]}\nbind 127.0.0.1\nsave ""\n')
        self._shims()
        self._checkout()

    def _release(self, folder: Path) -> None:
        (folder / "bin").mkdir(parents=True)
        for part in ENVIRONMENT:
            (folder / part).symlink_to(BIN.parent / part)
        for program in BIN.iterdir():
            if program.name != "muster":
                (folder / "bin" / program.name).symlink_to(program)
        command = folder / "bin/muster"
        command.write_text(COMMAND.format(installed=BIN / "muster", warm=self._command_python), encoding="utf-8")
        command.chmod(0o755)

    def _unit(self, name: str, command: str) -> None:
        (self.root / f"systemd/units/{name}.service").write_text(f"[Service]\nExecStart={command}\n")

    def _shims(self) -> None:
        shims = {**SHIMS, "systemctl": f'exec {sys.executable} {systemctl.__file__} {self.root}/systemd "$@"\n'}
        (self.root / "shims").mkdir()
        for name, text in shims.items():
            path = self.root / "shims" / name
            path.write_text(f"#!/bin/sh\n{text}")
            path.chmod(0o755)

    def _checkout(self) -> None:
        """What a reader has before them, with this machine's places in the unit files."""
        shutil.copytree(ROOT / "examples", self.root / "checkout/examples")
        folder = ROOT / "deploy/systemd"
        for source in (path for path in folder.rglob("*") if path.is_file()):
            target = self.root / "checkout/deploy/systemd" / source.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(put_in(source.read_text(encoding="utf-8"), self.places), encoding="utf-8")

    def start_database(self) -> ServerProcess:
        """Start it as the distribution's package leaves it: running, with an administrator, and nothing of Muster."""
        home = self.root / "postgresql"
        home.mkdir()
        server = TcpPostgres(home / "cluster", port=self.ports["5432"], superuser=SUPERUSER, password=PASSWORD)
        server.make(["--auth-host=scram-sha-256"])
        self.programs = server.programs
        process = server.start(self.root / "systemd/log/postgresql.log", variables={})
        wait_until(self._accepts)
        return process

    def _accepts(self) -> bool:
        asked = [str(self.programs / "pg_isready"), "-h", "127.0.0.1", "-p", self.ports["5432"]]
        return subprocess.run(asked, capture_output=True, check=False).returncode == 0

    def reader(self) -> Reader:
        checkout = self.root / "checkout"
        (checkout / ".state").mkdir(exist_ok=True)
        return Reader(
            checkout,
            places=self.places,
            variables={
                "PGHOST": "127.0.0.1",
                "PGPORT": self.ports["5432"],
                "PGPASSWORD": PASSWORD,
                "PGDATABASE": SUPERUSER,
            },
            path=(self.root / "shims", self.root / "usr/local/bin", self.programs),
        )

    def log(self, unit: str) -> str:
        path = self.root / "systemd/log" / f"{unit}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        units = [path.name for path in (self.root / "systemd/run").iterdir()]
        for unit in sorted(units, key=lambda name: name == "redis-server"):
            systemctl.stop(self.root / "systemd", unit)
        stop_programs(self.root / "var/lib/muster")


@contextmanager
def installation(root: Path, commands: WarmPython, jobs: WarmPython) -> Iterator[Installation]:
    """Hold the machine up. ``commands`` runs what ends by itself; ``jobs`` stands for the interpreter with torch."""
    machine = Installation(root, commands.path, jobs.daemon)
    database = machine.start_database()
    try:
        yield machine
    finally:
        machine.stop()
        database.end()
