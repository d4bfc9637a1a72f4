"""Questions of one attempt about its environment, or the bundle of its commit, over HTTP."""

import io
from functools import partial
from pathlib import Path

from muster.client.transport import Problem, UnreachableError
from muster.client.uploads import FolderContent
from muster.content.faults import FolderError
from muster.content.read import Bundle
from muster.content.scan import Found
from muster.domain.stored_content import FolderKind
from muster.plain_files import open_plain
from muster.wire.content import MAX_FAILURE_WORDS, EnvironmentAnswer, EnvironmentFailure, EnvironmentRequest
from muster.wire.host import PROTOCOL_VERSION
from workers.host.content.control_plane import ContentSource, answered, open_client
from workers.host.content.environment_build import BuildEnd
from workers.host.content.faults import NotBuiltError
from workers.host.content.fetch_order import EnvironmentKey, FetchOrder, Progress
from workers.host.content.uploads import HostUpload, PartFolder, UploadEndedError
from workers.host.content.whole_copy import Source


class BuildPlane:
    """The control plane, as ``shared_build.Plane`` says, for what is built as a folder of one kind."""

    def __init__(self, order: FetchOrder, progress: Progress, kind: FolderKind) -> None:
        self._order = order
        self._progress = progress
        self._kind = kind
        self._client = open_client(order)

    def ask(self, key: EnvironmentKey, built: str | None = None, public_key: bytes | None = None) -> EnvironmentAnswer:
        return answered(lambda: self._answer_once(key, built, public_key), self._progress)

    def renew(self, key: EnvironmentKey) -> EnvironmentAnswer | None:
        try:
            return self._answer_once(key, None)
        except UnreachableError:
            return None
        except Problem as fault:
            # The part is over, as after a cancel: the next question ends this process.
            return EnvironmentAnswer(state="wait") if fault.code == "stale_fence" else None

    def _answer_once(
        self, key: EnvironmentKey, built: str | None, public_key: bytes | None = None
    ) -> EnvironmentAnswer:
        request = EnvironmentRequest(
            protocol=PROTOCOL_VERSION,
            fence=self._order.fence,
            interpreter=key.interpreter,
            platform=key.platform,
            built=built,
            public_key=public_key,
        )
        return self._client.environment(self._order.part_id, key.text, request)

    def fail(self, key: EnvironmentKey, end: BuildEnd, log: str) -> None:
        failure = EnvironmentFailure(
            protocol=PROTOCOL_VERSION,
            fence=self._order.fence,
            words=end.words.replace("\x00", "\ufffd")[:MAX_FAILURE_WORDS],
            is_final=end.found == "final",
            line=end.line,
            log=log,
        )
        answered(lambda: self._client.environment_failed(self._order.part_id, key.text, failure), self._progress)

    def upload(self, key: EnvironmentKey, folder: Path, content: Bundle) -> None:
        order = self._order
        sender = PartFolder(self._client, order.part_id, order.fence, self._kind.value, key.text)
        note = self._progress.note_failure
        try:
            HostUpload(sender, FolderContent.of(content, partial(_opened, folder)), order.certificates, note).run()
        except (UploadEndedError, FolderError) as fault:
            raise NotBuiltError(f"it is built and cannot be stored: {fault}") from fault

    def source(self, digest: str) -> Source:
        return ContentSource(self._order, self._progress, digest, self._kind)


def _opened(folder: Path, found: Found) -> io.FileIO:
    """Open a file of a closed folder, which no one writes. Its change time is no longer what it was: it has a link."""
    return io.FileIO(open_plain(folder / found.path))
