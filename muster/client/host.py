"""The host's side of the host protocol over HTTP."""

from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from muster.client.key_file import KeyFile
from muster.client.transport import UnreachableError, open_http, send
from muster.domain.ids import AttemptId
from muster.wire.content import (
    BundleReport,
    BundleReportAnswer,
    DownloadsAnswer,
    DownloadsRequest,
    EnvironmentAnswer,
    EnvironmentFailure,
    EnvironmentFailureAnswer,
    EnvironmentRequest,
    FolderUploadAnswer,
    FolderUploadsRequest,
    LostObject,
    LostObjectAnswer,
    OutputsNote,
    OutputsNoteAnswer,
)
from muster.wire.host import (
    ClaimAnswer,
    ClaimRequest,
    HeartbeatAnswer,
    HeartbeatRequest,
    LogAnswer,
    LogBatch,
    ReportAnswer,
    ReportBatch,
    SecretsAnswer,
    SecretsRequest,
)
from muster.wire.messages import WireMessage
from muster.wire.training import FindingsAnswer, FindingsBatch, TrainAnswer, TrainBatch

_Answer = TypeVar("_Answer")
MANIFEST_S: Final = 120.0
"""The control plane reads one long manifest after the other, and stores up to 200,000 rows of each."""


class HostClient:
    """Heartbeat, claim, report and send logs as one node. Each call raises ``UnreachableError`` or ``Problem``."""

    def __init__(self, api_url: str, key: str | KeyFile, *, ca_file: Path | None = None) -> None:
        self._http = open_http(api_url, key, ca_file=ca_file)

    def close(self) -> None:
        self._http.close()

    def heartbeat(self, request: HeartbeatRequest) -> HeartbeatAnswer:
        return self._post("/v1/hosts/self/heartbeat", request, HeartbeatAnswer)

    def claim(self, attempt_id: AttemptId, request: ClaimRequest) -> ClaimAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/claim", request, ClaimAnswer)

    def secrets(self, attempt_id: AttemptId, request: SecretsRequest) -> SecretsAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/secrets", request, SecretsAnswer)

    def report(self, attempt_id: AttemptId, batch: ReportBatch) -> ReportAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/reports", batch, ReportAnswer)

    def send_logs(self, attempt_id: AttemptId, batch: LogBatch) -> LogAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/logs", batch, LogAnswer)

    def send_training(self, attempt_id: AttemptId, batch: TrainBatch) -> TrainAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/training", batch, TrainAnswer)

    def send_findings(self, attempt_id: AttemptId, batch: FindingsBatch) -> FindingsAnswer:
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/findings", batch, FindingsAnswer)

    def downloads(self, part_id: str, request: DownloadsRequest) -> DownloadsAnswer:
        """Return signed downloads. ``part_id``: of an attempt or a preflight."""
        return self._post(f"/v1/hosts/self/attempts/{part_id}/downloads", request, DownloadsAnswer)

    def lost_object(self, part_id: str, report: LostObject) -> LostObjectAnswer:
        """Report an object that the store does not have for this host, and return what the control plane found."""
        return self._post(f"/v1/hosts/self/attempts/{part_id}/lost-objects", report, LostObjectAnswer)

    def environment(self, part_id: str, key: str, request: EnvironmentRequest) -> EnvironmentAnswer:
        """Return how this host gets an environment, and renew the claim of a part that builds it."""
        return self._post(f"/v1/hosts/self/attempts/{part_id}/environments/{key}", request, EnvironmentAnswer)

    def environment_failed(self, part_id: str, key: str, failure: EnvironmentFailure) -> EnvironmentFailureAnswer:
        path = f"/v1/hosts/self/attempts/{part_id}/environments/{key}/failed"
        return self._post(path, failure, EnvironmentFailureAnswer)

    def begin_folder(
        self, part_id: str, kind: str, name: str, manifest: bytes, *, fence: int, protocol: int
    ) -> FolderUploadAnswer:
        """Begin the upload of a folder by its manifest's bytes, or continue it.

        ``kind``: ``outputs``, whose name is ``final`` or ``step-N``.
        """
        path = f"/v1/hosts/self/attempts/{part_id}/folders/{kind}/{name}?fence={fence}&protocol={protocol}"
        return self._post_bytes(path, manifest, FolderUploadAnswer, answer_s=MANIFEST_S)

    def confirm_folder(self, part_id: str, kind: str, name: str, request: FolderUploadsRequest) -> FolderUploadAnswer:
        """Confirm what the store has taken, and get the next uploads. With the last one the folder is complete."""
        path = f"/v1/hosts/self/attempts/{part_id}/folders/{kind}/{name}/uploads"
        return self._post(path, request, FolderUploadAnswer)

    def note_outputs(self, attempt_id: str, note: OutputsNote) -> OutputsNoteAnswer:
        """Report what could not be collected."""
        return self._post(f"/v1/hosts/self/attempts/{attempt_id}/output-notes", note, OutputsNoteAnswer)

    def report_bundles(self, report: BundleReport) -> BundleReportAnswer:
        return self._post("/v1/hosts/self/bundles", report, BundleReportAnswer)

    def _post(self, path: str, message: WireMessage, answer_type: type[_Answer]) -> _Answer:
        return self._post_bytes(path, msgspec.json.encode(message), answer_type)

    def _post_bytes(
        self, path: str, content: bytes, answer_type: type[_Answer], *, answer_s: float | None = None
    ) -> _Answer:
        headers = {"Content-Type": "application/json"}
        answer: Any = send(self._http, "POST", path, answer_s=answer_s, content=content, headers=headers)
        try:
            return msgspec.json.decode(answer.content, type=answer_type)
        except msgspec.MsgspecError as error:
            message_text = f"the answer of {path} cannot be read: {error}"
            raise UnreachableError(message_text) from error
