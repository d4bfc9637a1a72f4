"""Typed clients of the REST API.

``RestClient`` waits for its answers, ``AsyncRestClient`` lives in an event loop; both have the same methods, whose
answers are the ``TypedDict``s of ``muster.documents``::

    with RestClient("https://muster.example", token) as client:
        job = client.submit_job({"name": "train", "program": {"script": "/srv/train.py"}})
        for piece in client.follow_logs(job["id"]):
            print(piece["text"], end="")

    async with AsyncRestClient("https://muster.example", token) as client:
        async for event in client.follow_events():
            print(event["kind"], event["subject_id"])

Each call raises ``Problem`` for what the server refuses and ``UnreachableError`` where none answers. Reads, and
changes under an Idempotency-Key, are repeated with jitter, Retry-After and a budget (``retries``). ``host`` has the
calls of the hosts' own protocol.
"""

import importlib
from typing import TYPE_CHECKING, Final

from muster.client.key_file import KeyFile
from muster.client.transport import InsecureAddressError, Problem, UnreachableError

if TYPE_CHECKING:
    from muster.client.async_rest import AsyncRestClient
    from muster.client.rest import RestClient

__all__ = ["AsyncRestClient", "InsecureAddressError", "KeyFile", "Problem", "RestClient", "UnreachableError"]
_LATE: Final = {"AsyncRestClient": "muster.client.async_rest", "RestClient": "muster.client.rest"}
"""Imported with their first use: a process of a host needs neither, and starts in half the time."""


def __getattr__(name: str) -> object:
    if name in _LATE:
        return getattr(importlib.import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
