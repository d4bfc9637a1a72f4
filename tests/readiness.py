"""Whether an API that a test started answers, for the loops that wait for it."""

import ssl
from typing import Final

import httpx

_NO_CERTIFICATES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""The URLs are http://. By default each request reads the system's certificates, which takes 25 ms of CPU."""


def is_ready(url: str, *, timeout_s: float = 1.0) -> bool:
    """Return whether the API at ``url`` answers that it is ready."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=timeout_s, trust_env=False, verify=_NO_CERTIFICATES)
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
