"""The bundle of a git commit: made by one host of the tenant's, and from then on a bundle like any other."""

from functools import partial
from pathlib import Path

from muster.content.read import Bundle
from muster.content.scan import Limits as ScanLimits
from muster.wire.content import EnvironmentAnswer
from muster.wire.sealed_secrets import NotSealedForThisError, QuestionKey, context_of
from workers.host.content.building import Building, Step, built_in, log_in
from workers.host.content.faults import BrokenBuildError, NotBuiltError
from workers.host.content.fetch_order import EnvironmentKey, FetchOrder, GitOrder, Progress
from workers.host.content.git_build import GitBuildOrder
from workers.host.content.places import Place
from workers.host.content.shared_build import Plane, SharedBuild
from workers.host.content.whole_copy import Limits, WholeCopy


class GitMaking(SharedBuild[str]):
    """``made`` returns the digest of the bundle."""

    UNFIT = "the commit cannot be a bundle, which has all of its files"

    def __init__(self, order: FetchOrder, plane: Plane, progress: Progress) -> None:
        if order.git is None:
            raise ValueError("the order has no commit")
        super().__init__(order, plane, progress, order.git.build_s)
        self._git: GitOrder = order.git
        self._question: QuestionKey | None = None

    def _key(self) -> EnvironmentKey:
        return EnvironmentKey(self._git.key, "", "")

    def _ask(self, key: EnvironmentKey) -> EnvironmentAnswer:
        self._question = None if self._git.secret is None else QuestionKey()
        return self._plane.ask(key, public_key=None if self._question is None else self._question.public)

    def _used(self, digest: str) -> str:
        return digest

    def _limits(self) -> ScanLimits:
        return ScanLimits(max_bytes=self._git.max_bytes, max_files=self._git.max_files)

    def _begun(self, answer: EnvironmentAnswer, within_s: float) -> Building:
        return Building(self._order, partial(_step, self._order, self._git, self._secret_in(answer), within_s))

    def _secret_in(self, answer: EnvironmentAnswer) -> bytes | None:
        """Return the secret that opens the repository. Raises FetchError: there is none any more."""
        name, question = self._git.secret, self._question
        if question is None or name is None:
            return None
        if not answer.sealed:
            raise NotBuiltError(f"the control plane did not give the secret {name}")
        try:
            context = context_of(self._git.node_id, self._order.part_id, self._order.fence)
            values = question.opened(answer.public_key, answer.sealed, context)
        except NotSealedForThisError as fault:
            raise NotBuiltError(f"the secret {name}: {fault}") from fault
        if name not in values:
            raise BrokenBuildError(f"the secret {name} was deleted, or limited to other jobs, after the submission")
        return values[name]

    def _uploaded(self, key: EnvironmentKey, folder: Path, content: Bundle) -> str:
        self._plane.upload(key, folder, content)
        return content.digest

    def _keep(self, folder: Path, content: Bundle) -> None:
        """Make this host's copy of the bundle from what it has made: it need not fetch that."""
        order = self._order
        place = Place(Path(order.content_dir), order.tenant_id, content.digest)
        place.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        limits = Limits(order.cache_bytes, order.free_bytes)
        WholeCopy(place, self._plane.source(content.digest), limits, near=(folder, content.manifest)).made()


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
