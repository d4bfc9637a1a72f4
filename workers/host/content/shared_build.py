"""A stored folder that one host builds for all of a tenant's: an environment, or the bundle of a commit.

The part that asks first has the claim: it builds the folder and uploads it. The others ask again until it is there.
"""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from muster.content.faults import FolderError
from muster.content.read import Bundle, read_folder
from muster.content.scan import Limits as ScanLimits
from muster.wire.content import EnvironmentAnswer
from workers.host.content.build_claim import renewed
from workers.host.content.building import Building
from workers.host.content.environment_build import BuildEnd
from workers.host.content.failpoints import AFTER_BUILD, AFTER_CLAIM, AFTER_UPLOAD, IN_BUILD, failpoint
from workers.host.content.faults import BrokenBuildError, NoRoomError, NotBuiltError
from workers.host.content.fetch_order import EnvironmentKey, FetchOrder, Progress
from workers.host.content.whole_copy import FULL, Source

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 10.0
_POLL_S: Final = 0.02
Made = TypeVar("Made")


class Plane(Protocol):
    """The control plane's part. Each call is repeated until it is answered."""

    def ask(
        self, key: EnvironmentKey, built: str | None = None, public_key: bytes | None = None
    ) -> EnvironmentAnswer: ...

    def renew(self, key: EnvironmentKey) -> EnvironmentAnswer | None:
        """Ask once, from another thread; None: there was no answer."""

    def fail(self, key: EnvironmentKey, end: BuildEnd, log: str) -> None: ...

    def upload(self, key: EnvironmentKey, folder: Path, content: Bundle) -> None:
        """Raise NotBuiltError: the store will not have it."""

    def source(self, digest: str) -> Source: ...


class SharedBuild(ABC, Generic[Made]):
    """One part's way to the folder. ``within_s``: for all of it, from now on."""

    UNFIT: ClassVar[str]
    """The first words about a folder that was built and cannot be stored."""

    def __init__(self, order: FetchOrder, plane: Plane, progress: Progress, within_s: float) -> None:
        self._order = order
        self._plane = plane
        self._progress = progress
        self._within_s = within_s
        self._until_s = time.monotonic() + within_s

    def made(self) -> Made:
        """Return what the folder is for. It is in the store then.

        Raises:
            FetchError: it cannot be built, or is not available here.
            OSError: this host's disk fails.
        """
        try:
            return self._waited_for(self._key())
        except OSError as fault:
            if fault.errno not in FULL:
                raise
            raise NoRoomError(f"the disk of {self._order.content_dir} is full") from fault

    @abstractmethod
    def _key(self) -> EnvironmentKey:
        """Return the key. Raises FetchError: this host cannot use what has it."""

    def _ask(self, key: EnvironmentKey) -> EnvironmentAnswer:
        return self._plane.ask(key)

    @abstractmethod
    def _used(self, digest: str) -> Made | None:
        """Use the folder, which is in the store. None: ask again."""

    @abstractmethod
    def _limits(self) -> ScanLimits: ...

    @abstractmethod
    def _begun(self, answer: EnvironmentAnswer, within_s: float) -> Building:
        """Start the build. Raises NotBuiltError, BrokenBuildError."""

    def _stored_form(self, building: Building) -> Path:
        """Return the folder that is stored of what was built. Raises FolderError: it cannot be stored."""
        return building.content

    @abstractmethod
    def _uploaded(self, key: EnvironmentKey, folder: Path, content: Bundle) -> Made:
        """Upload what was built. Raises NotBuiltError."""

    def _keep(self, folder: Path, content: Bundle) -> None:
        """Keep what was built on this host, now that the control plane gives it out."""

    def _waited_for(self, key: EnvironmentKey) -> Made:
        pause_s = FIRST_PAUSE_S
        while True:
            answer, made = self._ask(key), None
            if answer.state == "failed":
                raise BrokenBuildError(answer.words)
            if answer.state == "built" and answer.digest is not None:
                made = self._used(answer.digest)
            elif answer.state == "build":
                made = self._built(key, answer)
            else:
                self._progress.note_failure("another host builds it")
            if made is not None:
                return made
            self._wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _wait(self, pause_s: float) -> None:
        if self._until_s - time.monotonic() <= pause_s:
            words = self._progress.failure or "it is not built"
            raise NotBuiltError(f"it was not here within {self._within_s:g} s: {words}")
        time.sleep(pause_s)

    def _built(self, key: EnvironmentKey, answer: EnvironmentAnswer) -> Made | None:
        """Build and upload it. Return what it is for; None: another try may succeed.

        Raises:
            FetchError: no other try would succeed, here or anywhere.
        """
        failpoint(AFTER_CLAIM)
        within_s = max(1.0, self._until_s - time.monotonic() - FIRST_PAUSE_S)
        with self._reported(key):
            building = self._begun(answer, within_s)
        with building, renewed(self._plane.renew, key, answer.lease_s) as claim:
            while not building.is_over():
                if claim.is_lost.is_set():
                    return None
                failpoint(IN_BUILD)
                time.sleep(_POLL_S)
            with self._reported(key):
                end = building.end()
            if end.found != "built":
                self._plane.fail(key, end, building.log())
                self._after(end)
                return None
            failpoint(AFTER_BUILD)
            return self._stored(key, building)

    def _after(self, end: BuildEnd) -> None:
        """Raise what a failed build means; return if it is tried again."""
        if end.found == "final":
            raise BrokenBuildError(end.words)
        if end.found == "host":
            raise NotBuiltError(end.words)
        self._progress.note_failure(end.words)

    def _stored(self, key: EnvironmentKey, building: Building) -> Made | None:
        with self._reported(key, building.log):
            try:
                folder = self._stored_form(building)
                content = read_folder(folder, limits=self._limits(), takes_all=True)
            except FolderError as fault:
                raise BrokenBuildError(f"{self.UNFIT}: {fault}") from fault
            made = self._uploaded(key, folder, content)
        failpoint(AFTER_UPLOAD)
        answer = self._plane.ask(key, built=content.digest)
        if answer.state != "built" or answer.digest != content.digest:
            return None
        self._keep(folder, content)
        return made

    @contextlib.contextmanager
    def _reported(self, key: EnvironmentKey, log: Callable[[], str] = str) -> Iterator[None]:
        """Report why there is no build, so that another host need not wait for the end of the claim."""
        try:
            yield
        except (NotBuiltError, BrokenBuildError) as fault:
            end = BuildEnd(found="host" if fault.IS_OF_HOST else "final", words=str(fault))
            self._plane.fail(key, end, log())
            raise
