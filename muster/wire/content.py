"""Folders between hosts and control plane: downloads and uploads for one part of an attempt, environments, and what a
host holds.

No content passes the API: a host reads and writes chunks of the content store by addresses that the control plane
signs. A folder's upload begins with its manifest as body, the same bytes as of a bundle.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from muster.wire.host import STORABLE, Count, PositiveFence, ShortText
from muster.wire.messages import WireAnswer, WireMessage

MAX_DOWNLOADS: Final = 500
"""Addresses in one answer: some 600 bytes each."""
MAX_UPLOADS: Final = 500
"""Objects that are offered for upload at once, or confirmed."""
MAX_REPORTED: Final = 1_000
"""Bundles that a host reports: of more it reports the ones that were used last."""
MAX_FAILURE_WORDS: Final = 4_096
MAX_BUILD_LOG: Final = 64 << 10
"""Characters of a failed build's log: its end."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Path = Annotated[str, Meta(max_length=4096, pattern=r"^[^\x00]*\Z")]
BundleCopy = Annotated[str, Meta(pattern=r"^[^/\x00]{1,128}/[0-9a-f]{64}\Z")]
"""A copy on a host, as ``TENANT/DIGEST``: tenants share none, though their folders may be the same."""


class DownloadsRequest(WireMessage, frozen=True, kw_only=True):
    """A request for the bundle of an attempt, or of a preflight, that this host has now.

    ``fence``: the attempt's, or the preflight's number. ``bundle``: the bundle's digest, or that of the environment
    that this part was answered. ``chunks``: the ones that the host lacks; it knows them by the manifest, which it may
    ask for alone.
    """

    protocol: int
    fence: PositiveFence
    bundle: Digest
    chunks: Annotated[tuple[Digest, ...], Meta(max_length=MAX_DOWNLOADS)] = ()


class Download(WireAnswer, frozen=True, kw_only=True):
    """A request to the content store that its holder may send until it expires."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)


class DownloadsAnswer(WireAnswer, frozen=True, kw_only=True):
    """``chunks``: in the order of the request."""

    manifest: Download
    chunks: tuple[Download, ...] = ()


class LostObject(WireMessage, frozen=True, kw_only=True):
    """An object of a folder that the store lacks for this host, or has with other bytes, each time it was asked.

    The control plane reads the object itself before it acts. The host repeats the message until it has.
    ``bundle``: the digest of the bundle or environment. ``digest``: of the object.
    """

    protocol: int
    fence: PositiveFence
    bundle: Digest
    digest: Digest


class LostObjectAnswer(WireAnswer, frozen=True, kw_only=True):
    """What the control plane knows of the object.

    ``reading``: it reads it soon. ``lost``: the store has lost it: a bundle has to be submitted again, or is
    made from its commit again if ``is_of_commit``, and an environment is built again. ``whole``: the store has it with
    the right bytes: the fault is this host's.
    """

    found: Literal["reading", "lost", "whole"]
    is_of_commit: bool = False


class BundleReport(WireMessage, frozen=True, kw_only=True):
    """All bundles of which the host has a whole copy, the ones that were used last first."""

    protocol: int
    bundles: Annotated[tuple[BundleCopy, ...], Meta(max_length=MAX_REPORTED)] = ()


class BundleReportAnswer(WireAnswer, frozen=True, kw_only=True):
    stored: int


class FolderUploadsRequest(WireMessage, frozen=True, kw_only=True):
    """What the store has taken of a folder since the last request. ``digest``: of the manifest that began it."""

    protocol: int
    fence: PositiveFence
    digest: Digest
    uploaded: Annotated[tuple[Digest, ...], Meta(max_length=MAX_UPLOADS)] = ()


class SignedUpload(WireAnswer, frozen=True, kw_only=True):
    """A chunk or manifest that the store lacks, and the request that its holder may send until it expires."""

    digest: str
    num_bytes: int
    url: str
    method: str = "PUT"
    headers: dict[str, str] = field(default_factory=dict)


class FolderUploadAnswer(WireAnswer, frozen=True, kw_only=True):
    """How far the upload of a folder is. ``uploads``: the next objects; with the last one it is complete.

    ``num_missing``, ``missing_bytes``: all that the store lacks. ``num_waiting``: objects that are just being deleted
    from the store: their uploads are offered a few minutes later, so an answer may have no upload and not be complete.
    """

    digest: str
    state: Literal["uploading", "complete"]
    uploads: tuple[SignedUpload, ...] = ()
    num_missing: int = 0
    missing_bytes: int = 0
    num_waiting: int = 0


class OutputsNote(WireMessage, frozen=True, kw_only=True):
    """What a host could not collect, for the job's timeline. A host reports a reason once for an attempt.

    ``step``: of the checkpoint; None: at the end. ``found``: ``skipped``: that checkpoint's outputs, since others were
    still being uploaded; ``left_out``: single paths; ``changed``: files that changed while they were read; ``failed``:
    nothing is uploaded. ``words``: why, in one line.
    ``num_paths``: of how many paths. ``paths``: the first of them.
    """

    protocol: int
    fence: PositiveFence
    found: Literal["skipped", "left_out", "changed", "failed"]
    words: Annotated[str, Meta(min_length=1, max_length=500, pattern=r"^[^\x00\r\n]*\Z")]
    step: Count | None = None
    num_paths: Count = 0
    paths: Annotated[tuple[_Path, ...], Meta(max_length=20)] = ()


class OutputsNoteAnswer(WireAnswer, frozen=True, kw_only=True):
    stored: bool


class EnvironmentRequest(WireMessage, frozen=True, kw_only=True, omit_defaults=True):
    """A question for the environment of a key, for an attempt or a preflight that this host has now.

    A host that builds repeats it, well before the answer's ``lease_s`` is over. ``interpreter``, ``platform``: of the
    host, as they are in the key. ``built``: the digest of the environment's folder, which this part has built and
    uploaded whole. A bundle of a git commit is asked for likewise, by the key of the part's order, with both empty.
    ``public_key``: X25519, made for this question alone, if the one that builds needs the secret of the repository.
    """

    protocol: int
    fence: PositiveFence
    interpreter: ShortText
    platform: ShortText
    built: Digest | None = None
    public_key: Annotated[bytes, Meta(min_length=32, max_length=32)] | None = None


class EnvironmentAnswer(WireAnswer, frozen=True, kw_only=True):
    """How a host gets an environment.

    ``built``: fetch the folder ``digest`` by a request for downloads. ``build``: this part is to build it.
    ``lease_s``: for how long it has the build. ``wait``: another part builds it, so ask again a little later.
    ``failed``: it cannot be built, by ``words`` and ``line`` of the lock. ``public_key``, ``sealed``: with ``build``,
    the secret of a repository, as ``wire.sealed_secrets`` says; the question had a key for it.
    """

    state: Literal["built", "build", "wait", "failed"]
    digest: str | None = None
    lease_s: float = 0.0
    words: str = ""
    line: int | None = None
    public_key: bytes = b""
    sealed: bytes = b""


class EnvironmentFailure(WireMessage, frozen=True, kw_only=True):
    """A build that failed. ``log``: the end of the installer's words.

    ``is_final``: it is the tenant's to fix, so that each further build would fail. Otherwise another part may build.
    """

    protocol: int
    fence: PositiveFence
    words: Annotated[str, Meta(max_length=MAX_FAILURE_WORDS, pattern=STORABLE)]
    is_final: bool
    line: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    log: Annotated[str, Meta(max_length=MAX_BUILD_LOG, pattern=STORABLE)] = ""


class EnvironmentFailureAnswer(WireAnswer, frozen=True, kw_only=True):
    """``accepted``: this part built it. The failure of another one is not stored."""

    accepted: bool
