"""The environment of one attempt: built by one host of the tenant's, fetched by the others, assembled once a host."""

import contextlib
import os
import platform
import sysconfig
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from muster.content.faults import DamagedError, FolderError
from muster.content.manifest import Manifest, encode
from muster.content.read import Bundle, read_folder
from muster.content.scan import Limits as ScanLimits
from muster.domain.stored_content import FolderKind
from muster.environments.assemble import Interpreter, ask_interpreter, check_host_packages
from muster.environments.build import PROJECT_FILE
from muster.environments.faults import EnvironmentFaultError, LockFaultError
from muster.environments.lock_file import MAX_LOCK_BYTES, LockKind, parse_lock
from muster.environments.recipe import PackageIndex, environment_key
from muster.wire.content import EnvironmentAnswer
from workers.host.content import copies
from workers.host.content.assembled import environment_for
from workers.host.content.build_claim import renewed
from workers.host.content.build_network import network_for
from workers.host.content.building import Building, Step, built_in, log_in
from workers.host.content.environment_build import BuildEnd, BuildOrder
from workers.host.content.failpoints import AFTER_BUILD, AFTER_CLAIM, AFTER_UPLOAD, IN_BUILD, failpoint
from workers.host.content.faults import BrokenEnvironmentError, LostObjectError, NoEnvironmentError, NoRoomError
from workers.host.content.fetch_order import EnvironmentKey, EnvironmentOrder, FetchOrder, Progress
from workers.host.content.places import Place
from workers.host.content.whole_copy import FULL, Limits, Source, WholeCopy

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
_POLL_S: Final = 0.05
_NUM_TRIES: Final = 3
_UMASK: Final = 0o022
"""Jobs read what is assembled, whatever the host worker's own mask."""
_ALL: Final = ScanLimits(max_bytes=1 << 50, max_files=10_000_000)
"""The control plane limits what it takes."""


class Plane(Protocol):
    """The control plane's part. Each call is repeated until it is answered."""

    def ask(self, key: EnvironmentKey, built: str | None = None) -> EnvironmentAnswer: ...

    def renew(self, key: EnvironmentKey) -> EnvironmentAnswer | None:
        """Ask once, from another thread; None: there was no answer."""

    def fail(self, key: EnvironmentKey, end: BuildEnd, log: str) -> None: ...

    def upload(self, key: EnvironmentKey, folder: Path, content: Bundle) -> None:
        """Raise NoEnvironmentError: the store will not have it."""

    def source(self, digest: str) -> Source: ...


class EnvironmentMaking:
    def __init__(self, order: FetchOrder, plane: Plane, progress: Progress) -> None:
        if order.environment is None:
            raise ValueError("the order has no environment")
        self._order = order
        self._environment: EnvironmentOrder = order.environment
        self._plane = plane
        self._progress = progress
        self._until_s = time.monotonic() + self._environment.build_s

    def made(self) -> Path:
        """Return the environment's folder on this host, by whose interpreter the program runs.

        Raises:
            FetchError: it cannot be built by its lock file, or not be fetched here.
            OSError: this host's disk fails.
        """
        os.umask(_UMASK)
        try:
            interpreter = ask_interpreter(self._environment.python)
            files = self._recipe_files()
            self._check_host(files, interpreter)
            return self._made(files, interpreter)
        except EnvironmentFaultError as fault:
            raise NoEnvironmentError(str(fault)) from fault
        except OSError as fault:
            if fault.errno not in FULL:
                raise
            raise NoRoomError(f"the disk of {self._order.content_dir} is full") from fault

    def _made(self, files: dict[str, bytes], interpreter: Interpreter) -> Path:
        lock, project = self._environment.recipe.lock, _project_of(self._environment.recipe.lock)
        own = (interpreter.name, platform_name())
        about = (files[lock], files.get(project, b"") if project else b"")
        text = environment_key(self._environment.recipe, *about, interpreter=own[0], platform=own[1])
        key = EnvironmentKey(text, *own)
        pause_s = FIRST_PAUSE_S
        while True:
            answer = self._plane.ask(key)
            if answer.state == "failed":
                raise BrokenEnvironmentError(answer.words)
            if answer.state == "built" and answer.digest is not None:
                try:
                    return self._used(answer.digest, interpreter)
                except LostObjectError as fault:  # a part of it is lost in the store: the next answer has it built
                    self._progress.note_failure(str(fault))
            elif answer.state == "build":
                made = self._built(key, files, answer.lease_s, interpreter)
                if made is not None:
                    return made
            else:
                self._progress.note_failure("another host builds it")
            self._wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _wait(self, pause_s: float) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= pause_s:
            words = self._progress.failure or "it is not built"
            raise NoEnvironmentError(f"it was not here within {self._environment.build_s:g} s: {words}")
        time.sleep(pause_s)

    def _recipe_files(self) -> dict[str, bytes]:
        """Return lock file and project by path, from the host's copy of the bundle, which no program writes."""
        recipe, bundle = self._environment.recipe, self._bundle()
        with bundle.locked(alone=False):
            root = bundle.copy.resolve()
            found = {name: _read(root, name) for name in (recipe.lock, _project_of(recipe.lock)) if name is not None}
        files = {name: content for name, content in found.items() if content is not None}
        if recipe.lock not in files:
            why = f"the bundle has no file {recipe.lock}; does `.gitignore` or `.musterignore` leave it out?"
            raise BrokenEnvironmentError(why)
        return files

    def _check_host(self, files: dict[str, bytes], interpreter: Interpreter) -> None:
        """Raise EnvironmentFaultError if this host lacks a package that the job takes from it."""
        recipe = self._environment.recipe
        if recipe.from_host:
            with contextlib.suppress(LockFaultError):  # the build reports it
                lock = parse_lock(Path(recipe.lock).name, files[recipe.lock], python=interpreter.version[:2])
                check_host_packages(lock, recipe.from_host, interpreter)

    def _bundle(self) -> Place:
        return Place(Path(self._order.content_dir), self._order.tenant_id, self._order.digest)

    def _built(
        self, key: EnvironmentKey, files: dict[str, bytes], lease_s: float, interpreter: Interpreter
    ) -> Path | None:
        """Build and upload it. Return the environment; None: another try may succeed.

        Raises:
            FetchError: no other try would succeed, here or anywhere.
        """
        failpoint(AFTER_CLAIM)
        within_s = max(1.0, self._until_s - time.monotonic() - FIRST_PAUSE_S)
        building = self._building(key, files, within_s)
        with building, renewed(self._plane.renew, key, lease_s) as claim:
            while not building.is_over():
                if claim.is_lost.is_set():
                    return None
                failpoint(IN_BUILD)
                time.sleep(_POLL_S)
            end = building.end()
            if end.found != "built":
                self._plane.fail(key, end, building.log())
                self._after(end)
                return None
            failpoint(AFTER_BUILD)
            return self._uploaded(key, building, interpreter)

    def _building(self, key: EnvironmentKey, files: dict[str, bytes], within_s: float) -> Building:
        given = self._environment
        try:
            network = network_for(given.recipe, given.index, has_user=self._order.job_uid is not None)
            index = given.index if network is None else network.index_in(given.index)
            return Building(self._order, partial(_step, given, index, within_s), files, network)
        except NoEnvironmentError as fault:  # another host may build it
            self._plane.fail(key, BuildEnd(found="host", words=str(fault)), "")
            raise

    def _after(self, end: BuildEnd) -> None:
        """Raise what a failed build means; return if it is tried again."""
        if end.found == "final":
            raise BrokenEnvironmentError(end.words)
        if end.found == "host":
            raise NoEnvironmentError(end.words)
        self._progress.note_failure(end.words)

    def _uploaded(self, key: EnvironmentKey, building: Building, interpreter: Interpreter) -> Path | None:
        try:
            content = read_folder(building.content, limits=_ALL, takes_all=True)
        except FolderError as fault:
            end = BuildEnd(found="final", words=f"the environment cannot be stored: {fault}")
            self._plane.fail(key, end, building.log())
            raise BrokenEnvironmentError(end.words) from fault
        # This host's own copy and bytecode take as long as the upload, and need nothing of it.
        threads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        try:
            uploading = threads.submit(self._plane.upload, key, building.content, content)
            made = self._used(content.digest, interpreter, _Near(building.content, content.manifest))
            uploading.result()
        except NoEnvironmentError as fault:
            self._plane.fail(key, BuildEnd(found="host", words=str(fault)), building.log())
            raise
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # a fault of this host is reported at once
        failpoint(AFTER_UPLOAD)
        answer = self._plane.ask(key, built=content.digest)
        return made if answer.state == "built" and answer.digest == content.digest else None

    def _used(self, digest: str, interpreter: Interpreter, built: "_Near | None" = None) -> Path:
        """Return the environment, assembled from the host's copy, which is made whole first.

        ``built``: what was built here, which needs no store. Its folder stays as it is meanwhile.
        """
        order = self._order
        place = Place(Path(order.content_dir), order.tenant_id, digest, FolderKind.ENVIRONMENT)
        limits = Limits(order.cache_bytes, order.free_bytes)
        source = self._plane.source(digest) if built is None else built
        near = None if built is None else (built.folder, built.of)
        copy = WholeCopy(place, source, limits, (self._bundle(),), near=near)
        attempt = Path(order.attempts_dir) / order.part_id
        for _ in range(_NUM_TRIES):
            manifest = copy.made()
            with place.locked(alone=True):
                if copies.is_as_read(place, manifest):
                    has_host_packages = bool(self._environment.recipe.from_host)
                    return environment_for(place, interpreter, has_host_packages=has_host_packages, attempt=attempt)
        raise DamagedError(f"the copy of the environment {digest[:12]} on this host changes while it is read")


def _step(given: EnvironmentOrder, index: PackageIndex, within_s: float, own: Path) -> Step:
    """Return the build of an environment in the folder ``own``. ``index``: as the build reaches it."""
    order = BuildOrder(
        recipe=given.recipe,
        work=str(own / "work"),
        target=str(built_in(own)),
        python=given.python,
        index=index,
        cache=str(own / "cache"),
        log=str(log_in(own)),
        within_s=within_s,
    )
    return Step("workers.host.content.environment_build", order)


@dataclass(frozen=True, slots=True)
class _Near:
    """The source of an environment that was built on this host: all of its chunks are in ``folder``."""

    folder: Path
    of: Manifest

    def manifest(self) -> bytes:
        return encode(self.of)

    def chunks(self, lacking: Mapping[str, int], save: Callable[[str, bytes], None]) -> None:
        """Raise DamagedError if a chunk is lacking: it was there, right, a moment ago."""
        del save
        if lacking:
            raise DamagedError(f"{len(lacking)} chunks of the environment have changed since it was built")


def _project_of(lock: str) -> str | None:
    """Return the path of the project file next to a ``uv.lock``."""
    folder, _, name = lock.rpartition("/")
    if name != LockKind.UV:
        return None
    return f"{folder}/{PROJECT_FILE}".lstrip("/")


def _read(root: Path, name: str) -> bytes | None:
    """Return a file of the bundle, one byte more than a lock may have at most; None: there is none."""
    try:
        path = (root / name).resolve(strict=True)
        if not path.is_relative_to(root) or not path.is_file():
            return None
        with path.open("rb") as file:
            return file.read(MAX_LOCK_BYTES + 1)
    except (OSError, RuntimeError):  # none, or links in a circle
        return None


def platform_name() -> str:
    """Return this host's part of an environment's key, such as ``linux_x86_64_glibc_2.36``."""
    name, version = platform.libc_ver()
    return "_".join(filter(None, (sysconfig.get_platform().replace("-", "_"), name, version)))
