"""The content store as the control plane sees it: it signs addresses, and its keepers list and delete.

``upload`` and ``download`` only compute. ``head``, ``list`` and ``delete`` call the store: they are for keepers and
commands, never for a request of the API, and never within a transaction.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple, Self
from urllib.parse import quote, urlsplit
from xml.etree import ElementTree as Xml  # noqa: ICN001  # of the operator's own store; expat bounds entities

from muster.domain.ids import TenantId
from muster.domain.residency import StorePlace
from muster.settings import Settings, SettingsError
from muster.store.calls import Answer, Line
from muster.store.faults import ObjectGoneError, StoreFullError, StoreWrongError, fault_of
from muster.store.key_file import KeyFile
from muster.store.keys import checkpoint_key, files_key
from muster.store.signing import Request, host_of, presign

UPLOAD_S: Final = 3600
"""So long an address for an upload counts: 500 chunks of 4 MiB at 0.6 MB/s."""
DOWNLOAD_S: Final = 3600
OWN_S: Final = 120
"""So long an address for a call of our own counts."""
PAGE: Final = 1000
SHA256_BYTES: Final = 32
CHECKSUM: Final = "x-amz-checksum-sha256"
FILE: Final = "muster-file"
"""Parameter of an address with the path of a file in a folder."""
FOLDER: Final = "muster-folder"
"""Parameter of an address with the folder of a checkpoint: an absolute path, or one below a folder of the gateway's."""
FULL: Final = "X-Muster-Full"
"""Header by which our own service says with a listing that it refuses uploads."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request that its holder may send until it expires, with exactly these headers and the body that they name."""

    method: str
    url: str
    headers: Mapping[str, str]


class StoredObject(NamedTuple):
    key: str
    num_bytes: int
    modified_at: datetime


class ObjectStore:
    """One bucket. Threads may share it."""

    def __init__(  # noqa: PLR0913  # each is a setting of its own
        self,
        url: str,
        bucket: str,
        keys: KeyFile,
        *,
        region: str,
        public_url: str | None = None,
        gateway_url: str | None = None,
        checkpoint_dirs: Sequence[Path] = (),
        ca_file: Path | None = None,
        place: StorePlace = StorePlace("main"),  # noqa: B008  # frozen
    ) -> None:
        """``url``: as the control plane reaches the store, ``public_url``: as clients and hosts do, if that is another.

        ``gateway_url``: of the process that joins the chunks of one file, as clients reach it; None: there is none.
        ``checkpoint_dirs``: folders of checkpoints that this process reads.
        ``ca_file``: the certificates that our own calls trust instead of the system's. ``place``: its name and site.
        """
        self.place = place
        self._keys, self._region, self._ca_file = keys, region, ca_file
        self._own = _Place.of(url, bucket)
        self._public = self._own if public_url is None else _Place.of(public_url, bucket)
        self._checkpoint_dirs = tuple(checkpoint_dirs)
        self._gateway = None if gateway_url is None else _Place.of(gateway_url, bucket)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self | None:
        """Return the store of the settings; None if they name none: callers say ``faults.NOT_CONFIGURED``.

        Raises SettingsError: only a part is set, or the key file cannot be used.
        """
        url, key_file = settings.store_url, settings.store_key_file
        if url is None and key_file is None:
            return None
        if url is None or key_file is None:
            raise SettingsError(["MUSTER_STORE_URL and MUSTER_STORE_KEY_FILE come together: only one of them is set"])
        return cls(
            url,
            settings.store_bucket,
            KeyFile(key_file),
            region=settings.store_region,
            public_url=settings.store_public_url,
            gateway_url=settings.store_gateway_url,
            checkpoint_dirs=settings.store_checkpoint_dirs,
            ca_file=settings.store_ca_file,
            place=StorePlace(settings.store_id, settings.store_site),
        )

    def upload(self, key: str, num_bytes: int, sha256: str, now: datetime) -> SignedRequest:
        """Return the permission to put these bytes, and no others. ``sha256``: in hexadecimal digits.

        Raises ValueError: it is none.
        """
        digest = bytes.fromhex(sha256)
        if len(digest) != SHA256_BYTES:
            raise ValueError(f"{sha256!r} is no SHA-256 in hexadecimal digits")
        checksum = base64.b64encode(digest).decode("ascii")
        headers = {"content-length": str(num_bytes), CHECKSUM: checksum}
        return self._signed("PUT", key, {}, headers, now=now, expires_s=UPLOAD_S)

    def download(self, key: str, now: datetime, file_name: str | None = None) -> SignedRequest:
        """Return the permission to read an object or ranges of it. With ``file_name`` a browser saves it under that."""
        query = {}
        if file_name is not None:
            query["response-content-disposition"] = _as_attachment(file_name)
            query["response-content-type"] = "application/octet-stream"
        return self._signed("GET", key, query, {}, now=now, expires_s=DOWNLOAD_S)

    @property
    def has_gateway(self) -> bool:
        return self._gateway is not None

    def file(self, tenant_id: TenantId, manifest: str, path: str, now: datetime) -> SignedRequest:
        """Return the permission to read one file of a folder, or ranges of it; a browser saves it under its name.

        ``manifest``: the digest of the folder's. Raises LookupError: no process joins the chunks of a file.
        """
        if self._gateway is None:
            raise LookupError("no gateway is configured")
        query = {FILE: path, "response-content-disposition": _as_attachment(path.rpartition("/")[2])}
        key = files_key(tenant_id, manifest)
        return self._signed("GET", key, query, {}, now=now, expires_s=DOWNLOAD_S, place=self._gateway)

    def reads_checkpoints_of(self, folder: str | None) -> bool:
        """Return whether the gateway reads checkpoints below a folder. None: the one of the hosts' own setting."""
        if folder is None or self._gateway is None:
            return self._gateway is not None and bool(self._checkpoint_dirs)
        return any(PurePosixPath(folder).is_relative_to(each) for each in self._checkpoint_dirs)

    def checkpoint(
        self, tenant_id: TenantId, manifest: str, folder: str, name: str | None, now: datetime, *, saved_as: str
    ) -> SignedRequest:
        """Return the permission to read one file of a checkpoint, or ranges of it; without ``name`` all as one archive.

        ``manifest``: the digest of the checkpoint's own. ``saved_as``: the name under which a browser saves it. Raises
        LookupError: no process reads checkpoints.
        """
        if self._gateway is None:
            raise LookupError("no gateway is configured")
        query = {FOLDER: folder, "response-content-disposition": _as_attachment(saved_as)}
        if name is not None:
            query[FILE] = name
        key = checkpoint_key(tenant_id, manifest)
        return self._signed("GET", key, query, {}, now=now, expires_s=DOWNLOAD_S, place=self._gateway)

    def head(self, key: str) -> int | None:
        """Return an object's number of bytes, or None if there is none. Raises StoreError."""
        with self._line() as line:
            answer = line.call("HEAD", self._target("HEAD", key, {}))
        if answer.status == 404:
            return None
        _require(answer, 200)
        return int(answer.headers.get("content-length", "0"))

    def read(self, key: str, most_bytes: int) -> bytes:
        """Return an object of at most so many bytes. Raises StoreError: there is none, or it has more."""
        with self._line() as line:
            return _require(line.call("GET", self._target("GET", key, {}), most_bytes=most_bytes), 200).body

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects below a prefix, in the order of their keys, a page of 1,000 a call. Raises StoreError."""
        query = {"list-type": "2", "max-keys": str(PAGE), "prefix": prefix}
        with self._line() as line:
            while True:
                answer = line.call("GET", self._target("GET", "", query))
                page = _page_of(_require(answer, 200).body)
                yield from page.objects
                if page.continuation is None:
                    return
                query["continuation-token"] = page.continuation

    def delete(self, keys: Iterable[str], *, decided_at: datetime | None = None) -> None:
        """Delete objects one by one; one that is not there is no fault. Raises StoreError: those after it remain.

        ``decided_at``: no deletion has an effect later than ``OWN_S`` after it, however long this process was stopped.
        """
        with self._line() as line:
            for key in keys:
                answer = line.call("DELETE", self._target("DELETE", key, {}, decided_at))
                if answer.status not in {200, 204}:
                    fault = fault_of(answer.status, answer.body)
                    if not isinstance(fault, ObjectGoneError):
                        raise fault

    def check(self) -> None:
        """Raise StoreError unless the store answers a signed request for this bucket, and has space."""
        with self._line() as line:
            query = {"list-type": "2", "max-keys": "1", "prefix": "tenants/"}
            answer = _require(line.call("GET", self._target("GET", "", query)), 200)
        _page_of(answer.body)
        if answer.headers.get(FULL) is not None:
            raise StoreFullError("the store's disk has no more than its reserve: uploads are refused")

    def _line(self) -> Line:
        return Line(self._own.origin, self._ca_file)

    def _target(self, method: str, key: str, query: Mapping[str, str], signed_at: datetime | None = None) -> str:
        now = signed_at or datetime.now(UTC)
        request = Request(method, f"{self._own.path}{key}", query, {"host": self._own.host})
        return presign(request, self._keys.current()[0], self._region, now=now, expires_s=OWN_S)

    def _signed(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        *,
        now: datetime,
        expires_s: int,
        place: "_Place | None" = None,
    ) -> SignedRequest:
        place = place or self._public
        request = Request(method, f"{place.path}{key}", query, {"host": place.host, **headers})
        target = presign(request, self._keys.current()[0], self._region, now=now, expires_s=expires_s)
        return SignedRequest(method, f"{place.origin}{target}", headers)


class _Place(NamedTuple):
    """A bucket's address. ``path``: before each key, ``host``: as the Host header has it."""

    origin: str
    host: str
    path: str

    @classmethod
    def of(cls, url: str, bucket: str) -> Self:
        parts = urlsplit(url.replace("{bucket}", bucket))
        path = parts.path.rstrip("/") + ("/" if "{bucket}" in url else f"/{bucket}/")
        return cls(f"{parts.scheme}://{parts.netloc}", host_of(parts.scheme, parts.netloc), path)


class _Page(NamedTuple):
    objects: tuple[StoredObject, ...]
    continuation: str | None


def _page_of(body: bytes) -> _Page:
    """Raise StoreWrongError: it is no page of a listing."""
    try:
        root = Xml.fromstring(body)  # noqa: S314  # as above
        objects = tuple(
            StoredObject(
                each.findtext("{*}Key") or "",
                int(each.findtext("{*}Size") or ""),
                datetime.fromisoformat(each.findtext("{*}LastModified") or ""),
            )
            for each in root.iterfind("{*}Contents")
        )
    except (Xml.ParseError, ValueError) as error:
        raise StoreWrongError(f"the content store's listing cannot be read: {error}") from error
    if not root.tag.endswith("ListBucketResult"):
        raise StoreWrongError(f"the content store answers a listing with <{root.tag}>")
    is_cut = root.findtext("{*}IsTruncated") == "true"
    return _Page(objects, (root.findtext("{*}NextContinuationToken") or None) if is_cut else None)


def _require(answer: Answer, status: int) -> Answer:
    if answer.status != status:
        raise fault_of(answer.status, answer.body)
    return answer


def _as_attachment(name: str) -> str:
    """Return the header by which a browser saves a file under ``name``, and never shows it."""
    plain = "".join(each if each.isascii() and each.isprintable() and each not in '"\\/%' else "_" for each in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"
