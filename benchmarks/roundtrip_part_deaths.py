"""Deaths where a part of an attempt gets its environment, and where its outputs are collected."""

import io
import json
import os
import random
import subprocess
import sys
import tarfile
import time
import zipfile
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
from sqlalchemy import select

from benchmarks.roundtrip_child import WORDS
from benchmarks.roundtrip_deaths import (
    PATIENCE_S,
    Content,
    Points,
    complete_folders,
    content_of,
    reported_done,
    require_killed,
    stored,
    torn,
    why_not_whole,
)
from benchmarks.roundtrip_plane import Member, Part, Plane, end_of, start_fetch
from muster.client.host import HostClient
from muster.client.key_file import KeyFile
from muster.db.models import JobOutput, StoredFolder
from muster.domain.stored_content import FolderKind, FolderState
from muster.environments.recipe import PackageIndex, Recipe
from tests.environments.wheels import locked, make_wheel
from workers.host.bundle_order import BundlesHost
from workers.host.content.fetch_order import EnvironmentOrder, FetchOrder
from workers.host.content.places import OUTPUTS, SET_ASIDE, WORK, Place
from workers.host.outputs.collect_process import CollectOrder
from workers.host.outputs.keeper import OutputKeeper
from workers.host.outputs.setting_aside import OutputOrder, make_closed
from workers.host.supervisor.files import ORDER

LOCK: Final = "requirements.txt"
BUILD_S: Final = 120.0
_STEP: Final = 5
_NUM_MODULES: Final = 40


class BuildDeaths:
    """A host builds an environment by its lock; the process is killed, and the next one of the part continues."""

    POINTS: ClassVar[Points] = (
        ("build", "build.after_claim=kill"),
        ("build", "build.in_build=kill@{}"),
        ("build", "build.after_build=kill"),
        ("build", "build.after_upload=kill"),
        ("build", "build.after_assembly=kill"),
    )

    def __init__(self, plane: Plane, folder: Path) -> None:
        self._plane, self._folder, self._house = plane, folder, folder / "wheels"
        chance = random.Random(0)  # noqa: S311  # repeats
        self._wheels = [
            make_wheel(
                self._house,
                name,
                files={f"{name}/part{at}.py": f"VALUE = {chance.random()}\n" * 50 for at in range(_NUM_MODULES)},
            )
            for name in ("alpha", "beta", "gamma")
        ]

    def die(self, process: str, point: str, number: int) -> list[str]:
        del process
        plane, member = self._plane, self._plane.new_member()
        own = self._folder / f"{point.partition('=')[0]}.{number}"
        own.mkdir()
        (own / "main.py").write_text("print('hello')\n")
        (own / LOCK).write_text(locked(*self._wheels))
        digest = member.upload(own).digest
        part = plane.preflight(member, digest, LOCK)
        index = PackageIndex(wheelhouse=str(self._house))
        order = part.order(part.state_dir, digest, environment_order(index))
        dies = start_fetch(order, failpoints=point)
        said, _ = dies.communicate(timeout=PATIENCE_S)
        require_killed(dies.returncode, point)
        found = reported_done(said) + self._torn_in_store("given out after the kill", member)
        venv = Path(end_of(start_fetch(order))["venv"])
        return found + self._torn_in_store("at the end", member) + self._torn_on_host(order, venv)

    def _torn_in_store(self, when: str, member: Member) -> list[str]:
        """Say which environments are given out to hosts and not whole in the store."""
        given_out = complete_folders(self._plane, member.tenant_id, FolderKind.ENVIRONMENT)
        found: list[str] = []
        for digest in given_out:
            read = partial(self._unpacked, member, digest)
            found += torn(f"environment {digest[:12]}, {when}", read, self._content(), is_all=False)
        return found

    def _unpacked(self, member: Member, digest: str) -> Content:
        return _unpacked(stored(self._plane, member.tenant_id, digest))

    def _torn_on_host(self, order: FetchOrder, venv: Path) -> list[str]:
        content_dir = Path(order.content_dir)
        found: list[str] = []
        for path in (content_dir / order.tenant_id).glob("*.env"):
            found += why_not_whole(f"the host's copy {path.name[:12]} at the end", Place.named(path))
        found += torn("the environment at the end", lambda: content_of(venv), self._content(), is_all=False)
        code = "import alpha, beta.part7, gamma; print(alpha.VERSION, gamma.VERSION)"
        done = subprocess.run([venv / "bin" / "python", "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        if done.stdout != "1.0 1.0\n":
            found.append(f"a program in the environment ended with {done.returncode}: {done.stderr[-200:]!r}")
        return found

    def _content(self) -> Content:
        """Return what the wheels install, except for the record that the installer writes itself."""
        found = {}
        for wheel in self._wheels:
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if not name.endswith("/RECORD"):
                        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
                        found[f"lib/python{version}/site-packages/{name}"] = archive.read(name)
        return found


def environment_order(index: PackageIndex) -> EnvironmentOrder:
    return EnvironmentOrder(recipe=Recipe(LOCK), build_s=BUILD_S, python=sys.executable, index=index)


def _unpacked(archives: Content) -> Content:
    """Return the files of a stored environment."""
    found = {}
    for content in archives.values():
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            for member in archive:
                if (file := archive.extractfile(member)) is not None:
                    found[member.name] = file.read()
    return found


class CollectDeaths:
    """A host sets outputs aside, copies and uploads them; the process is killed, and the host's keeper continues."""

    POINTS: ClassVar[Points] = (
        ("set aside", "outputs.after_move=kill@{}"),
        ("copy", "outputs.after_copy=kill"),
        ("collect", "outputs.after_read=kill"),
        ("collect", "outputs.in_upload=kill"),
        ("collect", "outputs.after_upload=kill"),
    )

    def __init__(self, plane: Plane, folder: Path) -> None:
        self._plane, self._member = plane, plane.new_member()
        own = folder / "own"
        own.mkdir()
        (own / "main.py").write_text("print('hello')\n")
        self._digest = self._member.upload(own).digest

    def die(self, process: str, point: str, number: int) -> list[str]:
        [part] = self._plane.parts(self._member, self._digest, outputs=["logs/*"])
        state_dir = part.state_dir
        wanted = _leave_outputs(state_dir, part, f"{point} {number}")
        if process == "copy":
            return self._die_copying(part, state_dir, wanted, point)
        if process == "set aside":
            require_killed(_set_aside(state_dir, part, point), point)
        _set_aside(state_dir, part, "")
        if process == "collect":
            require_killed(_collect(state_dir, part, part.attempt_id, failpoints=point), point)
        return self._used(state_dir, part, wanted, None)

    def _die_copying(self, part: Part, state_dir: Path, wanted: Content, point: str) -> list[str]:
        """Die in a copy at a checkpoint. It is not continued, since the files change: the next checkpoint's counts."""
        wanted = {path: content for path, content in wanted.items() if path.startswith("logs/")}
        for step, failpoints in ((_STEP, point), (_STEP + 1, "")):
            name = f"{part.attempt_id}.step-{step}"
            make_closed(state_dir / SET_ASIDE / name)
            code = _collect(state_dir, part, name, copy_of=part.attempt_id, step=step, failpoints=failpoints)
            if failpoints:
                require_killed(code, point)
        return self._used(state_dir, part, wanted, _STEP + 1)

    def _used(self, state_dir: Path, part: Part, wanted: Content, step: int | None) -> list[str]:
        """Let the keeper continue, and return what was torn before and after it. ``step``: of the only outputs then."""
        found = self._torn("given out after the kill", part, wanted)
        self._keep_until_done(state_dir, part)
        found += self._torn("at the end", part, wanted)
        steps = [step for step, _ in self._rows(part)]
        return (
            found
            if steps == [step]
            else [*found, f"outputs of the steps {steps}, and not of {step} alone, are given out"]
        )

    def _rows(self, part: Part) -> list[tuple[int | None, str]]:
        query = (
            select(JobOutput.step, StoredFolder.digest)
            .join(StoredFolder, StoredFolder.id == JobOutput.folder_id)
            .where(JobOutput.attempt_id == part.attempt_id, StoredFolder.state == FolderState.COMPLETE)
        )
        with self._plane.units.read() as session:
            return [(step, digest) for step, digest in session.execute(query)]

    def _torn(self, when: str, part: Part, wanted: Content) -> list[str]:
        """Say which folders of outputs are given out that are not exactly what the program left."""
        found: list[str] = []
        for step, digest in self._rows(part):
            read = partial(stored, self._plane, part.tenant_id, digest)
            found += torn(f"outputs of step {step}, {when}", read, wanted)
        return found

    def _keep_until_done(self, state_dir: Path, part: Part) -> None:
        at = BundlesHost(state_dir, part.url, part.host.key_file, None, 1 << 30)
        until_s = time.monotonic() + PATIENCE_S
        with closing(HostClient(part.url, KeyFile(part.host.key_file))) as client:
            keeper = OutputKeeper(at, client, 1 << 30)
            try:
                while any((state_dir / SET_ASIDE).iterdir()):
                    if time.monotonic() > until_s:
                        raise RuntimeError("outputs still wait for their upload")
                    keeper.turn()
                    time.sleep(0.05)
            finally:
                keeper.close()


def _leave_outputs(state_dir: Path, part: Part, seed: str) -> Content:
    """Leave what a program leaves. Return what is to be collected of it."""
    chance = random.Random(seed)  # noqa: S311  # repeats
    out, work = state_dir / OUTPUTS / part.attempt_id, state_dir / WORK / part.attempt_id
    attempt = state_dir / "attempts" / part.attempt_id
    for folder in (out / "sub", work / "logs", attempt):
        folder.mkdir(parents=True)
    (out / "model.pt").write_bytes(chance.randbytes(9 << 20))
    (out / "sub" / "report").write_bytes(chance.randbytes(5000))
    (out / "newest").symlink_to("model.pt")
    (work / "logs" / "a.csv").write_bytes(chance.randbytes(300_000))
    (work / "scratch").write_bytes(b"not named")
    outputs = OutputOrder(
        folder=str(out), seen_at=str(out), patterns=("logs/*",), max_bytes=1 << 30, max_files=1000, below=""
    )
    order: dict[str, Any] = {"fence": part.fence, "user": {}, "outputs": msgspec.to_builtins(outputs)}
    (attempt / ORDER).write_text(json.dumps(order))
    return {**content_of(out), "logs/a.csv": (work / "logs" / "a.csv").read_bytes()}


def _set_aside(state_dir: Path, part: Part, failpoints: str) -> int:
    command = [sys.executable, "-m", WORDS, "set_aside", str(state_dir), part.attempt_id]
    return subprocess.run(command, env=_variables(failpoints), check=False, timeout=PATIENCE_S).returncode  # noqa: S603


def _collect(
    state_dir: Path, part: Part, place: str, *, failpoints: str, copy_of: str | None = None, step: int | None = None
) -> int:
    """Run the process that the keeper starts, and return its exit code."""
    order = CollectOrder(
        state_dir=str(state_dir),
        place=place,
        api_url=part.url,
        key_file=str(part.host.key_file),
        copy_of=copy_of,
        step=step,
    )
    command = [sys.executable, "-I", "-m", "workers.host.outputs.collect_process"]
    with subprocess.Popen(command, env=_variables(failpoints), cwd="/", stdin=subprocess.PIPE) as process:  # noqa: S603
        if process.stdin is not None:
            process.stdin.write(msgspec.json.encode(order) + b"\n")
            process.stdin.flush()
        return process.wait(PATIENCE_S)


def _variables(failpoints: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "MUSTER_FAILPOINTS": failpoints}
