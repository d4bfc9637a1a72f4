"""The bundle of a git commit: made by one host of the tenant's, and from then on a bundle like any other."""

import time
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from muster.content.faults import FolderError
from muster.content.manifest import Manifest
from muster.content.read import Bundle, read_folder
from muster.content.scan import Limits as ScanLimits
from muster.wire.content import EnvironmentAnswer
from muster.wire.sealed_secrets import NotSealedForThisError, QuestionKey, context_of
from workers.host.content.build_claim import renewed
from workers.host.content.building import Building, Step, built_in, log_in
from workers.host.content.environment_build import BuildEnd
from workers.host.content.faults import BrokenCommitError, NoCommitError, NoEnvironmentError, NoRoomError
from workers.host.content.fetch_order import EnvironmentKey, FetchOrder, GitOrder, Progress
from workers.host.content.git_build import GitBuildOrder
from workers.host.content.places import Place
from workers.host.content.whole_copy import FULL, Limits, Source, WholeCopy

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
_POLL_S: Final = 0.05


class Plane(Protocol):
    """The control plane's part, as of an environment. ``public_key``: to which the secret is sealed."""

    def ask(
        self, key: EnvironmentKey, built: str | None = None, public_key: bytes | None = None
    ) -> EnvironmentAnswer: ...

    def renew(self, key: EnvironmentKey) -> EnvironmentAnswer | None: ...

    def fail(self, key: EnvironmentKey, end: BuildEnd, log: str) -> None: ...

    def upload(self, key: EnvironmentKey, folder: Path, content: Bundle) -> None: ...

    def source(self, digest: str) -> Source: ...


class GitMaking:
    def __init__(self, order: FetchOrder, plane: Plane, progress: Progress) -> None:
        if order.git is None:
            raise ValueError("the order has no commit")
        self._order = order
        self._git: GitOrder = order.git
        self._key = EnvironmentKey(order.git.key, "", "")
        self._plane = plane
        self._progress = progress
        self._until_s = time.monotonic() + order.git.build_s

    def digest(self) -> str:
        """Return the digest of the bundle, which is in the store then.

        Raises:
            FetchError: no bundle can be made of it, or not here.
            OSError: this host's disk fails.
        """
        try:
            return self._made()
        except NoEnvironmentError as fault:
            raise NoCommitError(str(fault)) from fault
        except OSError as fault:
            if fault.errno not in FULL:
                raise
            raise NoRoomError(f"the disk of {self._order.content_dir} is full") from fault

    def _made(self) -> str:
        pause_s = FIRST_PAUSE_S
        while True:
            question = None if self._git.secret is None else QuestionKey()
            answer = self._plane.ask(self._key, public_key=None if question is None else question.public)
            if answer.state == "built" and answer.digest is not None:
                return answer.digest
            if answer.state == "failed":
                raise BrokenCommitError(answer.words)
            if answer.state == "build":
                digest = self._built(answer.lease_s, self._secret_in(answer, question))
                if digest is not None:
                    return digest
            else:
                self._progress.note_failure("another host makes it")
            self._wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _wait(self, pause_s: float) -> None:
        if self._until_s - time.monotonic() <= pause_s:
            words = self._progress.failure or "it is not made"
            raise NoCommitError(f"it was not here within {self._git.build_s:g} s: {words}")
        time.sleep(pause_s)

    def _secret_in(self, answer: EnvironmentAnswer, question: QuestionKey | None) -> bytes | None:
        """Return the secret that opens the repository. Raises FetchError: there is none any more."""
        name = self._git.secret
        if question is None or name is None:
            return None
        if not answer.sealed:
            raise NoCommitError(f"the control plane did not give the secret {name}")
        try:
            context = context_of(self._git.node_id, self._order.part_id, self._order.fence)
            values = question.opened(answer.public_key, answer.sealed, context)
        except NotSealedForThisError as fault:
            raise NoCommitError(f"the secret {name}: {fault}") from fault
        if name not in values:
            words = f"the secret {name} was deleted, or limited to other jobs, after the submission"
            self._plane.fail(self._key, BuildEnd(found="final", words=words), "")
            raise BrokenCommitError(words)
        return values[name]

    def _built(self, lease_s: float, secret: bytes | None) -> str | None:
        """Make it and upload it. Return its digest; None: another try may succeed.

        Raises:
            FetchError: no other try would succeed, here or anywhere.
        """
        within_s = max(1.0, self._until_s - time.monotonic() - FIRST_PAUSE_S)
        step = partial(_step, self._order, self._git, secret, within_s)
        with Building(self._order, step) as building, renewed(self._plane.renew, self._key, lease_s) as claim:
            del step, secret
            while not building.is_over():
                if claim.is_lost.is_set():
                    return None
                time.sleep(_POLL_S)
            end = building.end()
            if end.found == "built":
                return self._uploaded(building)
            self._plane.fail(self._key, end, building.log())
            if end.found == "final":
                raise BrokenCommitError(end.words)
            if end.found == "host":
                raise NoCommitError(end.words)
            self._progress.note_failure(end.words)
            return None

    def _uploaded(self, building: Building) -> str | None:
        limits = ScanLimits(max_bytes=self._git.max_bytes, max_files=self._git.max_files)
        try:
            content = read_folder(building.content, limits=limits, takes_all=True)
        except FolderError as fault:
            words = f"the commit cannot be a bundle, which has all of its files: {fault}"
            self._plane.fail(self._key, BuildEnd(found="final", words=words), building.log())
            raise BrokenCommitError(words) from fault
        try:
            self._plane.upload(self._key, building.content, content)
        except NoEnvironmentError as fault:
            self._plane.fail(self._key, BuildEnd(found="host", words=str(fault)), building.log())
            raise
        answer = self._plane.ask(self._key, built=content.digest)
        if answer.state != "built" or answer.digest is None:
            return None
        if answer.digest == content.digest:
            self._keep(content.digest, (building.content, content.manifest))
        return answer.digest

    def _keep(self, digest: str, near: tuple[Path, Manifest]) -> None:
        """Make this host's copy of the bundle from what it has made: it need not fetch that."""
        order = self._order
        place = Place(Path(order.content_dir), order.tenant_id, digest)
        place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits = Limits(order.cache_bytes, order.free_bytes)
        WholeCopy(place, self._plane.source(digest), limits, near=near).made()


def _step(order: FetchOrder, git: GitOrder, secret: bytes | None, within_s: float, own: Path) -> Step:
    """Return the build of the commit in the folder ``own``."""
    build = GitBuildOrder(
        url=git.url,
        commit=git.commit,
        secret=secret,
        secret_name=git.secret,
        folder=str(own / "repository"),
        target=str(built_in(own)),
        log=str(log_in(own)),
        within_s=within_s,
        max_bytes=git.max_bytes,
        max_files=git.max_files,
        free_bytes=order.free_bytes,
    )
    return Step("workers.host.content.git_build", build)
