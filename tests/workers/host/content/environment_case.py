"""A host that gets environments in processes of its own, by a control plane and a store that are files."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
import psutil

from muster.content.manifest import Kind, encode
from muster.content.read import Bundle, read_chunk
from muster.environments.recipe import PackageIndex, Recipe
from muster.wire.content import EnvironmentAnswer
from tests.environments.wheels import locked, make_wheel, source_lock
from tests.waiting import wait_until
from workers.host.content.environment_build import BuildEnd
from workers.host.content.fetch_order import EnvironmentKey, EnvironmentOrder, FetchOrder
from workers.host.supervisor.proof.processes import living_processes

from .bundle_case import TENANT, BundleSource, HostDisk, source_of, write_folder

RECIPE = Recipe("requirements.txt")
_CHILD = Path(__file__).with_name("environment_child.py")


@dataclass(frozen=True)
class FilePlane:
    """What the control plane and the store of the tests know, for any number of processes."""

    folder: Path

    def ask(self, key: EnvironmentKey, built: str | None = None, public_key: bytes | None = None) -> EnvironmentAnswer:
        with self._locked() as known:
            if built is not None:
                known["built"][key.text] = built
            if (digest := known["built"].get(key.text)) is not None:
                return EnvironmentAnswer(state="built", digest=digest)
            if (end := known["failed"].get(key.text)) is not None:
                return EnvironmentAnswer(state="failed", words=end["words"], line=end["line"])
            if known["builder"] is not None and Path(f"/proc/{known['builder']}").exists():
                known["num_waits"] += 1
                return EnvironmentAnswer(state="wait")
            known["builder"] = os.getpid()
            known["num_builds"] += 1
            return EnvironmentAnswer(state="build", lease_s=4.0)

    def renew(self, key: EnvironmentKey) -> EnvironmentAnswer | None:
        with self._locked() as known:
            is_lost = known["builder"] != os.getpid()
            return EnvironmentAnswer(state="wait" if is_lost else "build", lease_s=4.0)

    def fail(self, key: EnvironmentKey, end: BuildEnd, log: str) -> None:
        with self._locked() as known:
            known["builder"] = None
            known["ends"].append({"found": end.found, "words": end.words, "line": end.line, "log": log})
            if end.found == "final":
                known["failed"][key.text] = {"words": end.words, "line": end.line}

    def upload(self, key: EnvironmentKey, folder: Path, content: Bundle) -> None:
        for entry in content.manifest.entries:
            for number, digest in enumerate(entry.parts if entry.kind <= Kind.PROGRAM else ()):
                self._store(digest, read_chunk(folder, entry, number))
        self._store(content.digest, encode(content.manifest))

    def _store(self, digest: str, content: bytes) -> None:
        draft = self.folder / f".{digest}.{os.getpid()}"
        draft.write_bytes(content)
        draft.rename(self.folder / digest)

    def source(self, digest: str) -> BundleSource:
        objects = {path.name: path.read_bytes() for path in self.folder.iterdir() if len(path.name) == 64}
        return BundleSource(objects, objects[digest], on_chunk=self._note_fetch)

    def _note_fetch(self, digest: str) -> None:
        with self._locked() as known:
            known["fetched"].append(digest)

    def known(self) -> dict[str, Any]:
        with self._locked() as known:
            return known

    def change(self, **changes: object) -> None:
        with self._locked() as known:
            known.update(changes)

    @contextmanager
    def _locked(self) -> Iterator[dict[str, Any]]:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "known.json"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            empty: dict[str, Any] = {
                "built": {},
                "failed": {},
                "ends": [],
                "fetched": [],
                "builder": None,
                "num_builds": 0,
                "num_waits": 0,
            }
            known = json.loads(path.read_text()) if path.exists() else empty
            yield known
            # Whole or not at all: another thread of a process that dies may be here.
            draft = path.with_name("known.draft")
            draft.write_text(json.dumps(known))
            draft.replace(path)


@dataclass
class EnvironmentHost:
    """A host with its state folder."""

    disk: HostDisk
    plane: FilePlane
    index: PackageIndex
    build_s: float = 120.0

    @property
    def state(self) -> Path:
        return self.disk.state_dir

    def bundle(self, lock: str, name: str = RECIPE.lock) -> str:
        """Have the host fetch a bundle with this lock file. Return its digest."""
        folder = write_folder(self.state.parent / "own", **{name: lock.encode()})
        digest, source = source_of(folder)
        self.disk.fetch(digest, source, "att_0")
        return digest

    def order(self, digest: str, attempt: str = "att_1", recipe: Recipe = RECIPE) -> FetchOrder:
        (self.state / "attempts" / attempt).mkdir(parents=True, exist_ok=True)
        environment = EnvironmentOrder(recipe=recipe, build_s=self.build_s, python=sys.executable, index=self.index)
        return FetchOrder(
            digest=digest,
            tenant_id=TENANT,
            part_id=attempt,
            fence=1,
            folder=str(self.state / "work" / attempt),
            content_dir=str(self.state / "content"),
            attempts_dir=str(self.state / "attempts"),
            cache_bytes=1 << 30,
            free_bytes=0,
            are_linked=True,
            owner=None,
            api_url="",
            key_file="",
            environment=environment,
        )

    def start(self, order: FetchOrder, *, dies_after: int = 0) -> "subprocess.Popen[str]":
        """Start a process that gets the environment. ``dies_after``: at so many changes of the disk."""
        path = self.state / f"{order.part_id}.order"
        path.write_bytes(msgspec.json.encode(order))
        command = [sys.executable, str(_CHILD), str(path), str(self.plane.folder), str(dies_after)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def start_fetch(self, order: FetchOrder) -> "subprocess.Popen[str]":
        """Start the process that a supervisor starts, which asks the control plane of the order."""
        with (self.state / f"{order.part_id}.order").open("w+b") as asked:
            asked.write(msgspec.json.encode(order))
            asked.seek(0)
            command = [sys.executable, "-m", "workers.host.content.fetch_process", str(asked.fileno())]
            pipe = subprocess.PIPE
            return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, pass_fds=[asked.fileno()])

    def run(self, order: FetchOrder) -> dict[str, Any]:
        """Return the last line of a process that gets the environment."""
        lines, faults = self.start(order).communicate(timeout=120)
        assert lines, faults
        last: dict[str, Any] = json.loads(lines.splitlines()[-1])
        return last

    def environment(self, digest: str, attempt: str = "att_1", recipe: Recipe = RECIPE) -> Path:
        end = self.run(self.order(digest, attempt, recipe))
        assert "venv" in end, end
        return Path(end["venv"])

    def close(self, attempt: str) -> None:
        """Prove an attempt clean: its program has ended."""
        (self.state / "attempts" / attempt / "clean.json").write_text('{"clean": true}')


def new_host(folder: Path, plane: Path, house: Path) -> EnvironmentHost:
    house.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    index = PackageIndex(wheelhouse=str(house), source_builds="anywhere")
    return EnvironmentHost(HostDisk(folder / "state"), FilePlane(plane), index)


def one_wheel(house: Path, name: str = "alpha", **wheel: object) -> str:
    """Add a wheel and return its lock."""
    return locked(make_wheel(house, name, **wheel))  # type: ignore[arg-type]  # as given


@dataclass(frozen=True)
class SlowBuild:
    """A lock whose package notes the process that builds it, and is built once the test opens ``gate``, a FIFO."""

    lock: str
    builders: Path
    gate: Path

    @classmethod
    @contextmanager
    def in_house(cls, house: Path, folder: Path) -> Iterator[Self]:
        """Add the package to a wheelhouse. At the end no build of it is left, also after a failed test."""
        builders, gate = folder / "builders", folder / "gate"
        os.mkfifo(gate)
        code = f"open({str(builders)!r}, 'a').write(f'{{os.getpid()}}\\n'); open({str(gate)!r}).close()"
        slow = cls(source_lock(house, code), builders, gate)
        try:
            yield slow
        finally:
            gate.unlink()  # a build that comes here later fails
            slow._end()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let builds continue, whenever they reach the gate."""
        descriptor = os.open(self.gate, os.O_RDWR)  # for both, which waits for no reader
        try:
            yield
        finally:
            os.close(descriptor)

    def num_begun(self) -> int:
        return len(self._pids())

    def processes(self) -> list[psutil.Process]:
        """Return the ones that build, and live."""
        living = living_processes()
        return [psutil.Process(pid) for pid in self._pids() if pid in living]

    def _pids(self) -> list[int]:
        return [int(pid) for pid in self.builders.read_text().split()] if self.builders.exists() else []

    def _end(self) -> None:
        """Kill each build with its installer, which a killed builder leaves and which writes into the folder."""
        ended = set[int]()
        for backend in self.processes():
            group = os.getpgid(backend.pid)  # the installer's
            ended |= {one.pid for one in (backend, *backend.parents()) if os.getpgid(one.pid) == group}
            os.killpg(group, signal.SIGKILL)
        wait_until(lambda: not ended & living_processes().keys())


def printed(environment: Path, code: str) -> str:
    done = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def kill(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
