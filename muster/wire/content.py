"""Content between hosts and control plane: downloads for one part of an attempt, environments, and what a host holds.

No content passes the API: a host reads chunks from the content store by addresses that the control plane signs.
"""

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from muster.wire.host import STORABLE, PositiveFence, ShortText
from muster.wire.messages import WireAnswer, WireMessage

MAX_DOWNLOADS: Final = 500
"""Addresses in one answer: some 600 bytes each."""
MAX_REPORTED: Final = 1_000
"""Bundles that a host reports: of more it reports the ones that were used last."""
MAX_FAILURE_WORDS: Final = 4_096
MAX_BUILD_LOG: Final = 64 << 10
"""Characters of a failed build's log: its end."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
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


class BundleReport(WireMessage, frozen=True, kw_only=True):
    """All bundles of which the host has a whole copy, the ones that were used last first."""

    protocol: int
    bundles: Annotated[tuple[BundleCopy, ...], Meta(max_length=MAX_REPORTED)] = ()


class BundleReportAnswer(WireAnswer, frozen=True, kw_only=True):
    stored: int


class EnvironmentRequest(WireMessage, frozen=True, kw_only=True):
    """A question for the environment of a key, for an attempt or a preflight that this host has now.

    A host that builds repeats it, well before the answer's ``lease_s`` is over. ``interpreter``, ``platform``: of the
    host, as they are in the key. ``built``: the digest of the environment's folder, which this part has built and
    uploaded whole.
    """

    protocol: int
    fence: PositiveFence
    interpreter: ShortText
    platform: ShortText
    built: Digest | None = None


class EnvironmentAnswer(WireAnswer, frozen=True, kw_only=True):
    """How a host gets an environment.

    ``built``: fetch the folder ``digest`` by a request for downloads. ``build``: this part is to build it.
    ``lease_s``: for how long it has the build. ``wait``: another part builds it, so ask again a little later. ``failed``: it cannot be
    built, by ``words`` and ``line`` of the lock.
    """

    state: Literal["built", "build", "wait", "failed"]
    digest: str | None = None
    lease_s: float = 0.0
    words: str = ""
    line: int | None = None


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
