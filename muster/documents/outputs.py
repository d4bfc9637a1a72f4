"""Outputs of jobs: which folders of them there are, and their files."""

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from muster.documents.fields import Moment, OneOf, Page
from muster.domain.states import CheckpointStatus
from muster.domain.stored_content import FolderState, HostOutputsState


class OutputsCheckpoint(TypedDict):
    """The checkpoint with which outputs were collected. ``sha256``: of its manifest; null: none was reported."""

    id: str
    generation: str
    status: Annotated[str, OneOf(CheckpointStatus)]
    sha256: str | None


class JobOutputs(TypedDict):
    """The outputs of one host's part of an attempt.

    ``id``: of these outputs. ``attempt``: its number. ``step``: of the checkpoint with which they were collected; null:
    at the end of the attempt. ``digest``: of their manifest. ``num_bytes``: of all files.
    ``completed_at``: when the host had uploaded them; null: it has not yet, and nothing of them can be read.
    ``checkpoint``: with which they were collected; null: at the end, or it was not reported, or was saved again.
    """

    id: int
    attempt: int
    attempt_id: str
    node_rank: int
    step: int | None
    state: Annotated[str, OneOf(FolderState)]
    digest: str
    num_files: int
    num_bytes: int
    created_at: Moment
    completed_at: Moment | None
    checkpoint: OutputsCheckpoint | None


class JobOutputsPage(Page):
    items: list[JobOutputs]


class HostOutputs(TypedDict):
    """The outputs of one host at the end of an attempt. ``is_missing``: not all of them are there to be read.

    ``why``: what is missing, as text; else empty. ``num_files``, ``num_bytes``: null: the host has sent no list of
    them.
    """

    attempt: int
    attempt_id: str
    node_rank: int
    node_id: str
    node_name: str
    state: Annotated[str, OneOf(HostOutputsState)]
    is_missing: bool
    why: str
    num_files: int | None
    num_bytes: int | None


class HostOutputsPage(Page):
    items: list[HostOutputs]


class JobFile(TypedDict):
    """A file of a job's outputs. ``outputs``: the id of these. ``attempt``: its number. ``step``: null: of the end."""

    path: str
    num_bytes: int
    outputs: int
    attempt: int
    node_rank: int
    step: int | None


class JobFilePage(Page):
    items: list[JobFile]


class ChunkNames(TypedDict):
    """``chunks``: digests of chunks to read, 500 at most; empty: the manifest alone."""

    chunks: list[str]


class SignedDownload(TypedDict):
    """A request that reads one object from the content store, with exactly these headers, within the hour."""

    url: str
    headers: dict[str, str]


class OutputDownloads(TypedDict):
    """``manifest``: of the outputs. ``chunks``: in the order of the request."""

    manifest: SignedDownload
    chunks: list[SignedDownload]


class CheckpointFileNames(TypedDict):
    """``files``: `MANIFEST.json`, or any file that it names, 500 at most.

    ``unverified``: also of a checkpoint that was not read back, did not verify, or may have wrong results.
    """

    files: list[str]
    unverified: NotRequired[bool]


class CheckpointDownloads(TypedDict):
    """``sha256``: of the checkpoint's manifest, as its job reported it. ``files``: in the order of the request."""

    generation: str
    sha256: str
    files: list[SignedDownload]
