"""Bundles between hosts and control plane: signed downloads for one part of an attempt, and what a host holds.

No content passes the API: a host reads chunks from the content store by addresses that the control plane signs.
"""

from typing import Annotated, Final

from msgspec import Meta, field

from muster.wire.host import PositiveFence
from muster.wire.messages import WireAnswer, WireMessage

MAX_DOWNLOADS: Final = 500
"""Addresses in one answer: some 600 bytes each."""
MAX_REPORTED: Final = 1_000
"""Bundles that a host reports: of more it reports the ones that were used last."""
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
BundleCopy = Annotated[str, Meta(pattern=r"^[^/\x00]{1,128}/[0-9a-f]{64}\Z")]
"""A copy on a host, as ``TENANT/DIGEST``: tenants share none, though their folders may be the same."""


class DownloadsRequest(WireMessage, frozen=True, kw_only=True):
    """A request for the bundle of an attempt, or of a preflight, that this host has now.

    ``fence``: the attempt's, or the preflight's number. ``chunks``: the ones that the host lacks; it knows them by the
    manifest, which it may ask for alone.
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
