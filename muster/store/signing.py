"""Signatures of version 4 in the query of an address, as S3 has them: made here by the control plane, verified by our
own service.

A signed address is a permission: its holder may send this one request until it expires. Its signature covers the
method, the host, the key, the query and the headers that it names. The secret itself never leaves the control plane.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

ALGORITHM: Final = "AWS4-HMAC-SHA256"
MAX_EXPIRES_S: Final = 7 * 24 * 3600
MAX_SKEW: Final = timedelta(minutes=5)
"""So far in the future a signature may be dated: the clocks of two machines differ."""
_DATE: Final = "%Y%m%dT%H%M%SZ"
_SAFE: Final = "-_.~"
_PLAIN: Final = re.compile(r"[A-Za-z0-9._~-]*")
"""Texts that are encoded as they are, found by a pattern in a fifth of the time that ``quote`` takes."""
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._~-]*")
_PARAMETERS: Final = frozenset(
    {"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"}
)


class SignatureError(Exception):
    """A request without a valid signature. ``code``: as S3 names the fault."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class AccessKey:
    """One pair of a store's access key and its secret."""

    name: str
    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Request:
    """The parts of a request that a signature covers. ``path``: decoded. ``headers``: those to sign, in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


def presign(request: Request, key: AccessKey, region: str, *, now: datetime, expires_s: int) -> str:
    """Return path and query of the request with its signature, which counts from ``now`` on for ``expires_s``."""
    stamp = now.astimezone(UTC).strftime(_DATE)
    names = sorted(request.headers)
    parameters = {
        "X-Amz-Algorithm": ALGORITHM,
        "X-Amz-Credential": f"{key.name}/{_scope(stamp, region)}",
        "X-Amz-Date": stamp,
        "X-Amz-Expires": str(expires_s),
        "X-Amz-SignedHeaders": ";".join(names),
        **request.query,
    }
    path, query = _encoded_path(request.path), _encoded_query(parameters)
    canonical = _canonical(request.method, path, query, [(name, request.headers[name]) for name in names])
    return f"{path}?{query}&X-Amz-Signature={_signature(canonical, stamp, key, region)}"


def verify(
    request: Request,
    find: Callable[[str], AccessKey | None],
    region: str,
    *,
    now: datetime,
    required: Sequence[str] = ("host",),
) -> None:
    """Raise SignatureError unless the query of ``request`` has a signature that counts at ``now``.

    ``find``: returns the accepted key of a name. ``request.headers``: all headers of the request. ``required``: the
    headers that must be signed.
    """
    given = request.query
    if missing := sorted(_PARAMETERS - given.keys()):
        raise SignatureError("AccessDenied", f"the address is not signed: {missing[0]} is missing from its query")
    if given["X-Amz-Algorithm"] != ALGORITHM:
        raise SignatureError("InvalidArgument", f"X-Amz-Algorithm must be {ALGORITHM}")
    name, _, scope = given["X-Amz-Credential"].partition("/")
    key = find(name)
    if key is None:
        raise SignatureError("InvalidAccessKeyId", "the store does not know the access key of this signature")
    _check_time(given, scope, region, now)
    names = given["X-Amz-SignedHeaders"].split(";")
    if unsigned := [each for each in required if each not in names]:
        raise SignatureError("AccessDenied", f"the signature must cover the header {unsigned[0]}")
    signed = [(each, request.headers.get(each, "")) for each in names]
    query = _encoded_query({each: value for each, value in given.items() if each != "X-Amz-Signature"})
    canonical = _canonical(request.method, _encoded_path(request.path), query, signed)
    expected = _signature(canonical, given["X-Amz-Date"], key, region)
    if not hmac.compare_digest(expected.encode(), given["X-Amz-Signature"].encode()):
        raise SignatureError("SignatureDoesNotMatch", "the signature does not match this method, address and headers")


def query_of(text: str) -> dict[str, str]:
    """Return the parameters of a raw query. Raises SignatureError: a name stands twice, or is not UTF-8."""
    found: dict[str, str] = {}
    for pair in filter(None, text.split("&")):
        name, _, value = (unquote(part, errors="surrogateescape") for part in pair.partition("="))
        if name in found or not (name + value).isprintable():
            raise SignatureError("InvalidArgument", "a parameter of the query stands twice, or has a control character")
        found[name] = value
    return found


def host_of(scheme: str, netloc: str) -> str:
    """Return the Host header that clients send: without the port that the scheme implies."""
    default = {"http": ":80", "https": ":443"}[scheme]
    return netloc.removesuffix(default)


def _check_time(given: Mapping[str, str], scope: str, region: str, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(given["X-Amz-Date"], _DATE).replace(tzinfo=UTC)
        expires_s = int(given["X-Amz-Expires"])
    except ValueError:
        raise SignatureError("InvalidArgument", "X-Amz-Date or X-Amz-Expires cannot be read") from None
    if scope != _scope(given["X-Amz-Date"], region):
        raise SignatureError("InvalidArgument", f"X-Amz-Credential must be of the day of X-Amz-Date and of {region}")
    if not 0 < expires_s <= MAX_EXPIRES_S:
        raise SignatureError("InvalidArgument", f"X-Amz-Expires must be 1 to {MAX_EXPIRES_S} seconds")
    if signed_at > now + MAX_SKEW:
        raise SignatureError("RequestTimeTooSkewed", "the signature is dated in the future: compare the clocks")
    if now >= signed_at + timedelta(seconds=expires_s):
        raise SignatureError("AccessDenied", "the signed address has expired: get another one")


def _canonical(method: str, path: str, query: str, headers: Sequence[tuple[str, str]]) -> str:
    lines = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in headers)
    names = ";".join(name for name, _ in headers)
    return f"{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD"


def _signature(canonical: str, stamp: str, key: AccessKey, region: str) -> str:
    digest = hashlib.sha256(canonical.encode("utf-8", "surrogateescape")).hexdigest()
    text = f"{ALGORITHM}\n{stamp}\n{_scope(stamp, region)}\n{digest}"
    return hmac.digest(_day_key(key.secret, stamp[:8], region), text.encode(), "sha256").hex()


@lru_cache(maxsize=16)
def _day_key(secret: str, day: str, region: str) -> bytes:
    """Return the key of one day: four digests that thousands of signatures share."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _scope(stamp: str, region: str) -> str:
    return f"{stamp[:8]}/{region}/s3/aws4_request"


def _encoded_path(path: str) -> str:
    return path if _PLAIN_PATH.fullmatch(path) else quote(path, safe=f"/{_SAFE}", errors="surrogateescape")


def _encoded_query(parameters: Mapping[str, str]) -> str:
    encoded = sorted((_encoded(name), _encoded(value)) for name, value in parameters.items())
    return "&".join(f"{name}={value}" for name, value in encoded)


def _encoded(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else quote(text, safe=_SAFE, errors="surrogateescape")
