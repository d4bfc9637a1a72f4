"""The environment of one attempt: built by one host of the tenant's, fetched by the others, assembled once a host."""

import contextlib
import os
import platform
import sysconfig
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from muster.content.archives import pack
from muster.content.faults import ArchiveError, DamagedError
from muster.content.manifest import Manifest, encode
from muster.content.read import Bundle
from muster.content.scan import Limits as ScanLimits
from muster.domain.stored_content import FolderKind
from muster.environments.assemble import ask_interpreter, check_host_packages
from muster.environments.build import PROJECT_FILE
from muster.environments.faults import EnvironmentFaultError, LockFaultError
from muster.environments.lock_file import MAX_LOCK_BYTES, LockKind, parse_lock
from muster.environments.recipe import PackageIndex, environment_key
from muster.wire.content import EnvironmentAnswer
from workers.host.content import copies
from workers.host.content.assembled import Assembling
from workers.host.content.build_network import network_for
from workers.host.content.building import Building, Step, built_in, log_in
from workers.host.content.chunks import files_of, wrong_chunks
from workers.host.content.environment_build import BuildOrder
from workers.host.content.faults import BrokenBuildError, BrokenBundleError, LostObjectError, NotBuiltError
from workers.host.content.fetch_order import EnvironmentKey, EnvironmentOrder, FetchOrder, Progress
from workers.host.content.places import Place
from workers.host.content.shared_build import Plane, SharedBuild
from workers.host.content.whole_copy import Limits, WholeCopy

_NUM_TRIES: Final = 3
_PACKAGE_DEPTH: Final = 4
"""Parts of a path such as ``lib/python3.11/site-packages/numpy``."""
_UMASK: Final = 0o022
"""Jobs read what is assembled, whatever the host worker's own mask."""
_ALL: Final = ScanLimits(max_bytes=1 << 50, max_files=10_000_000)
"""The control plane limits what it takes."""


class EnvironmentMaking(SharedBuild[Path]):
    """``made`` returns the environment's folder on this host, by whose interpreter the program runs."""

    UNFIT = "the environment cannot be stored"

    def __init__(self, order: FetchOrder, plane: Plane, progress: Progress) -> None:
        if order.environment is None:
            raise ValueError("the order has no environment")
        super().__init__(order, plane, progress, order.environment.build_s)
        self._environment: EnvironmentOrder = order.environment

    def made(self) -> Path:
        os.umask(_UMASK)
        try:
            return super().made()
        except EnvironmentFaultError as fault:
            raise NotBuiltError(str(fault)) from fault

    def _key(self) -> EnvironmentKey:
        self._interpreter = ask_interpreter(
            self._environment.python, with_versions=bool(self._environment.recipe.from_host)
        )
        self._files = self._recipe_files()
        self._check_host()
        lock, project = self._environment.recipe.lock, _project_of(self._environment.recipe.lock)
        own = (self._interpreter.name, platform_name())
        about = (self._files[lock], self._files.get(project, b"") if project else b"")
        text = environment_key(self._environment.recipe, *about, interpreter=own[0], platform=own[1])
        return EnvironmentKey(text, *own)

    def _limits(self) -> ScanLimits:
        return _ALL

    def _used(self, digest: str) -> Path | None:
        try:
            return self._assembled(digest)
        except LostObjectError as fault:  # a part of it is lost in the store: the next answer has it built
            self._progress.note_failure(str(fault))
            return None

    def _recipe_files(self) -> dict[str, bytes]:
        """Return lock file and project by path, from the host's copy of the bundle, which no program writes."""
        recipe, bundle = self._environment.recipe, self._bundle()
        with bundle.locked(alone=False):
            root = bundle.copy.resolve()
            found = {name: _read(root, name) for name in (recipe.lock, _project_of(recipe.lock)) if name is not None}
        files = {name: content for name, content in found.items() if content is not None}
        if recipe.lock not in files:
            why = f"the bundle has no file {recipe.lock}; does `.gitignore` or `.musterignore` leave it out?"
            raise BrokenBuildError(why)
        return files

    def _check_host(self) -> None:
        """Raise EnvironmentFaultError if this host lacks a package that the job takes from it."""
        recipe = self._environment.recipe
        if recipe.from_host:
            with contextlib.suppress(LockFaultError):  # the build reports it
                name, version = Path(recipe.lock).name, self._interpreter.version[:2]
                lock = parse_lock(name, self._files[recipe.lock], python=version)
                check_host_packages(lock, recipe.from_host, self._interpreter)

    def _bundle(self) -> Place:
        return Place(Path(self._order.content_dir), self._order.tenant_id, self._order.digest)

    def _begun(self, answer: EnvironmentAnswer, within_s: float) -> Building:
        del answer
        given = self._environment
        network = network_for(given.recipe, given.index, has_user=self._order.job_uid is not None)
        index = given.index if network is None else network.index_in(given.index)
        return Building(self._order, partial(_step, given, index, within_s), self._files, network)

    def _stored_form(self, building: Building) -> Path:
        packed = building.closed / "packed"
        pack(building.content, packed, _package_of)
        return packed

    def _uploaded(self, key: EnvironmentKey, folder: Path, content: Bundle) -> Path:
        # This host's own environment needs nothing of the upload.
        threads = ThreadPoolExecutor(1, thread_name_prefix="upload")
        try:
            uploading = threads.submit(self._plane.upload, key, folder, content)
            made = self._assembled(content.digest, _Near(folder, content.manifest))
            uploading.result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)  # a fault of this host is reported at once
        return made

    def _assembled(self, digest: str, built: "_Near | None" = None) -> Path:
        """Return the environment, assembled from the host's copy, which is made whole first.

        ``built``: what was built here, which needs no store. Its folder stays as it is meanwhile.
        """
        order = self._order
        place = Place(Path(order.content_dir), order.tenant_id, digest, FolderKind.ENVIRONMENT)
        limits = Limits(order.cache_bytes, order.free_bytes)
        source = self._plane.source(digest) if built is None else built
        near = None if built is None else (built.folder, built.of)
        copy = WholeCopy(place, source, limits, (self._bundle(),), near=near, may_link=True)
        for _ in range(_NUM_TRIES):
            manifest = copy.made()
            with place.locked(alone=True):
                if copies.is_as_read(place, manifest) and (made := self._made_of(place, manifest)) is not None:
                    return made
        raise DamagedError(f"the copy of the environment {digest[:12]} on this host changes while it is read")

    def _made_of(self, place: Place, manifest: Manifest) -> Path | None:
        """Return the environment of the copy, which the caller has locked alone. None: the copy is damaged."""
        make_room = partial(
            copies.make_free,
            place,
            manifest.num_bytes,
            least_free=self._order.free_bytes,
            used=(self._bundle(),),
        )
        has_host_packages = bool(self._environment.recipe.from_host)
        archives = {place.copy / entry.path: entry for entry in files_of(manifest)}
        assembling = Assembling(place, tuple(archives), self._interpreter, has_host_packages, make_room)
        try:
            return assembling.made(Path(self._order.attempts_dir) / self._order.part_id)
        except ArchiveError as fault:
            if any(wrong_chunks(entry, path) for path, entry in archives.items()):
                copies.note(place, copies.CopyRecord(num_bytes=place.bytes_of(manifest)))
                return None
            raise BrokenBundleError(f"the environment cannot be used: {fault}") from fault


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


def _package_of(path: str) -> str | None:
    """Return the package to which a file of an environment belongs."""
    parts = path.split("/")
    return parts[_PACKAGE_DEPTH - 1] if len(parts) > _PACKAGE_DEPTH else None


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
