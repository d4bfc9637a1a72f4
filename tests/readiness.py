"""Whether an API that a test started answers, for the loops that wait for it."""

import httpx

from muster.client.transport import trusted


def is_ready(url: str, *, timeout_s: float = 1.0) -> bool:
    """Return whether the API at ``url`` answers that it is ready."""
    try:
        answer = httpx.get(f"{url}/readyz", timeout=timeout_s, trust_env=False, verify=trusted(url, None))
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK
