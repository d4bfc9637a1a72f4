"""Manifests as bodies: read one at a time, apart from the threads of everybody, and few of each tenant at once."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Annotated, Any, Final

from fastapi import Depends, Request

from api.bodies import raw_body
from api.permissions import requires, requires_of_host
from api.refusals import refusing
from control.content.manifests import Reading, read_manifest
from muster.content.manifest import Manifest
from muster.domain.errors import (
    MalformedRequestError,
    PayloadTooLargeError,
    RateLimitedError,
    UnsupportedMediaTypeError,
    ValidationFailedError,
)
from muster.domain.principals import Permission, Principal

MOST_AT_ONCE: Final = 2
"""Manifests of one tenant, or of one host, that a process holds in memory at once."""
SUBMITTER: Final = requires(Permission.JOB_SUBMIT)
NODE: Final = requires_of_host(Permission.HOST_REPORT)


class ManifestReaders:
    """One thread, which waits for a child where a manifest is long. For the loop's thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="manifests")
        self._taken: Counter[str] = Counter()

    @contextmanager
    def place(self, tenant: str) -> Iterator[None]:
        """Hold a place of the tenant. Raises RateLimitedError: it has none left."""
        if self._taken[tenant] >= MOST_AT_ONCE:
            message = f"{MOST_AT_ONCE} manifests of this tenant are being read"
            raise RateLimitedError(message, retry_after_s=1)
        self._taken[tenant] += 1
        try:
            yield
        finally:
            self._taken[tenant] -= 1

    async def read(self, body: bytes) -> Reading:
        return await asyncio.get_running_loop().run_in_executor(self._pool, read_manifest, body)

    def close(self) -> None:
        self._pool.shutdown(wait=False)


async def _manifest(request: Request, principal: Annotated[Principal, SUBMITTER]) -> Reading:
    return await _read(request, principal)


async def _manifest_of_host(request: Request, node: Annotated[Principal, NODE]) -> Reading:
    return await _read(request, node)


async def _read(request: Request, sender: Principal) -> Reading:
    readers: ManifestReaders = request.app.state.manifest_readers
    with readers.place(sender.tenant_id or sender.name):
        return await readers.read(await raw_body(request))


_REFUSED: Final = (
    PayloadTooLargeError,
    UnsupportedMediaTypeError,
    ValidationFailedError,
    MalformedRequestError,
    RateLimitedError,
)
manifest_body: Final = Depends(refusing(_manifest, *_REFUSED))
manifest_body_of_host: Final = Depends(refusing(_manifest_of_host, *_REFUSED))


def described_as_manifest() -> dict[str, Any]:
    """Return OpenAPI's description of the body."""
    number, text = {"type": "integer", "minimum": 0}, {"type": "string"}
    entry = {
        "type": "array",
        "description": "path; kind: 0 file, 1 executable file, 2 symbolic link, 3 empty folder; bytes; the SHA-256 of "
        "each 4 MiB of the file, or the target of a link",
        "prefixItems": [text, {"enum": [0, 1, 2, 3]}, number, {"type": "array", "items": text}],
        "minItems": 4,
        "maxItems": 4,
    }
    schema = {
        "type": "array",
        "description": Manifest.__name__ + " of a folder: its version, and its paths in their order",
        "prefixItems": [{"const": 1}, {"type": "array", "items": entry}],
        "minItems": 2,
        "maxItems": 2,
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
