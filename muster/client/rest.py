"""The REST API for people and programs: typed where it matters, repeated only where a repetition is safe."""

import json
import random
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import httpx

from muster.client.gpus import GpuCalls
from muster.client.transport import Problem, UnreachableError, open_http, raise_for_problem, send

Document = dict[str, Any]

RETRY_BASE_S: Final = 0.2
RETRY_CAP_S: Final = 30.0
RETRY_BUDGET_S: Final = 20.0
_RETRIED_STATUSES: Final = frozenset({408, 425, 429, 503})
_STREAM_TIMEOUT: Final = httpx.Timeout(10.0, read=60.0)
_CHANCE: Final = random.SystemRandom()


class RestClient(GpuCalls):
    """Raises ``UnreachableError`` or ``Problem``. Reads, and changes under an Idempotency-Key, are repeated with full
    jitter (0.2 s doubling to 30 s, 20 s in all), honouring Retry-After.
    """

    def __init__(self, api_url: str, token: str, *, ca_file: Path | None = None) -> None:
        self._http = open_http(api_url, token, ca_file=ca_file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def whoami(self) -> Document:
        return self._read("/v1/whoami")

    def submit_job(self, spec: Document, *, idempotency_key: str | None = None, dry_run: bool = False) -> Document:
        return self._change("POST", "/v1/jobs", spec, key=idempotency_key, dry_run=dry_run)

    def job(self, job_id: str) -> Document:
        return self._read(f"/v1/jobs/{job_id}")

    def jobs(self, **filters: Any) -> Iterator[Document]:
        """Every job, page by page, newest first."""
        return self._pages("/v1/jobs", filters)

    def checkpoints(self, job_id: str) -> list[Document]:
        return list(self._read(f"/v1/jobs/{job_id}/checkpoints")["items"])

    def ranks(self, job_id: str) -> list[Document]:
        return list(self._read(f"/v1/jobs/{job_id}/training/ranks")["items"])

    def steps(self, job_id: str) -> Iterator[Document]:
        """The whole loss curve, step by step."""
        after: int | None = -1
        while after is not None:
            page = self._read(f"/v1/jobs/{job_id}/training/steps", after=after)
            yield from page["items"]
            after = page["next_after"]

    def create_cordon(self, wanted: Document) -> Document:
        return self._change("POST", "/v1/cordons", wanted)

    def release_cordon(self, cordon_id: str, reason: str | None = None) -> Document:
        return self._change("POST", f"/v1/cordons/{cordon_id}/release", {"reason": reason})

    def cordons(self) -> list[Document]:
        return list(self._read("/v1/cordons")["items"])

    def incidents(self, **filters: Any) -> Iterator[Document]:
        """The newest first. Filters: ``state``, ``kind``, ``subject``."""
        return self._pages("/v1/incidents", filters)

    def incident(self, incident_id: str) -> Document:
        return self._read(f"/v1/incidents/{incident_id}")

    def close_incident(self, incident_id: str, reason: str, *, dry_run: bool = False) -> Document:
        path = f"/v1/incidents/{incident_id}/close"
        return self._change("POST", path, {"reason": reason}, dry_run=dry_run)

    def reclaims(self, **filters: Any) -> Iterator[Document]:
        """Every reclaim that this key sees, page by page, newest first."""
        return self._pages("/v1/reclaims", filters)

    def reclaim(self, reclaim_id: str) -> Document:
        return self._read(f"/v1/reclaims/{reclaim_id}")

    def cancel_job(self, job_id: str, reason: str | None = None) -> Document:
        return self._change("POST", f"/v1/jobs/{job_id}/cancel", {"reason": reason})

    def release_job(self, job_id: str, reason: str | None = None) -> Document:
        return self._change("POST", f"/v1/jobs/{job_id}/release", {"reason": reason})

    def logs(self, job_id: str, **filters: Any) -> Iterator[Document]:
        after = 0
        while True:
            page = self._read(f"/v1/jobs/{job_id}/logs", after=after, **filters)
            yield from page["items"]
            if not page["items"]:
                return
            after = page["next_after"]

    def follow_logs(self, job_id: str, **filters: Any) -> Iterator[Document]:
        """Pieces as they come, until the job has ended; resumes where the connection broke."""
        for name, _, data in self._stream(f"/v1/jobs/{job_id}/logs", {"follow": "true", **filters}, ends_with="end"):
            if name == "log":
                yield data

    def events(self, *, after: int = 0) -> Iterator[Document]:
        while True:
            page = self._read("/v1/events", after=after)
            yield from page["items"]
            if not page["items"]:
                return
            after = page["next_after"]

    def follow_events(self, *, after: int | None = None) -> Iterator[Document]:
        parameters = {} if after is None else {"after": after}
        for _, _, data in self._stream("/v1/events/stream", parameters, ends_with=None):
            yield data

    def create_key(self, wanted: Document) -> Document:
        return self._change("POST", "/v1/keys", wanted, key=None, is_repeatable=False)

    def keys(self) -> list[Document]:
        return self._items("/v1/keys")

    def revoke_key(self, key_id: str) -> Document:
        version = self._read(f"/v1/keys/{key_id}")["version"]
        return self._change("DELETE", f"/v1/keys/{key_id}", None, headers={"If-Match": f'"v{version}"'})

    def create_join_token(self, wanted: Document) -> Document:
        """Its ``token`` is in this answer alone, so it is never asked for twice."""
        return self._change("POST", "/v1/join-tokens", wanted, is_repeatable=False)

    def create_tenant(self, name: str) -> Document:
        return self._change("POST", "/v1/tenants", {"name": name})

    def set_quota(self, tenant_id: str, tier: str, ceiling_gpus: int, reason: str) -> Document:
        wanted = {"ceiling_gpus": ceiling_gpus, "reason": reason}
        return self._change("PUT", f"/v1/tenants/{tenant_id}/quotas/{tier}", wanted)

    def quotas(self, tenant_id: str) -> list[Document]:
        return self._items(f"/v1/tenants/{tenant_id}/quotas")

    def tenants(self) -> list[Document]:
        return self._items("/v1/tenants")

    def nodes(self) -> list[Document]:
        return self._items("/v1/nodes")

    def gpus(self, **filters: Any) -> list[Document]:
        """By node and slot, of all pages. Filters: ``standing``, ``node``, ``model``, ``below``, ``uuid``."""
        return list(self._pages("/v1/gpus", filters))

    def figures(self) -> str:
        """The server's gauges and counters in Prometheus' text."""
        return self._repeating("GET", "/metrics").text

    def burn_ins(self, **filters: Any) -> list[Document]:
        """The newest order first. Filters: ``gpu``, ``node``, ``state``, ``outcome``."""
        return list(self._pages("/v1/burn-ins", filters))

    def burn_in(self, burn_in_id: str) -> Document:
        return self._read(f"/v1/burn-ins/{burn_in_id}")

    def order_burn_in(self, gpu_uuid: str, reason: str) -> Document:
        return self._change("POST", f"/v1/gpus/{gpu_uuid}/burn-in", {"reason": reason})

    def _items(self, path: str) -> list[Document]:
        items: list[Document] = self._read(path)["items"]
        return items

    def _pages(self, path: str, filters: Document) -> Iterator[Document]:
        cursor: str | None = None
        while True:
            page = self._read(path, **filters, **({"cursor": cursor} if cursor else {}))
            yield from page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _read(self, path: str, **parameters: Any) -> Document:
        answer = self._repeating("GET", path, params=_given(parameters))
        document: Document = answer.json()
        return document

    def _change(
        self,
        method: str,
        path: str,
        body: Document | None,
        *,
        key: str | None = None,
        dry_run: bool = False,
        is_repeatable: bool = True,
        headers: dict[str, str] | None = None,
    ) -> Document:
        headers = dict(headers or {})
        if is_repeatable:
            headers["Idempotency-Key"] = key or str(uuid.uuid4())
        request: Document = {"headers": headers, "params": {"dry_run": "true"} if dry_run else {}}
        if body is not None:
            request["json"] = body
        answer = (self._repeating if is_repeatable else self._once)(method, path, **request)
        document: Document = answer.json()
        return document

    def _once(self, method: str, path: str, **request: Any) -> httpx.Response:
        return send(self._http, method, path, **request)

    def _repeating(self, method: str, path: str, **request: Any) -> httpx.Response:
        deadline = time.monotonic() + RETRY_BUDGET_S
        for tries in range(1, 100):
            try:
                return send(self._http, method, path, **request)
            except UnreachableError:
                pause_s = _pause_s(tries, None)
                if time.monotonic() + pause_s > deadline or tries > 3:
                    raise
            except Problem as problem:
                pause_s = _pause_s(tries, (problem.document or {}).get("retry_after"))
                if problem.status not in _RETRIED_STATUSES or time.monotonic() + pause_s > deadline:
                    raise
            time.sleep(pause_s)
        raise UnreachableError(f"{path} was tried too often")

    def _stream(
        self, path: str, parameters: Document, *, ends_with: str | None
    ) -> Iterator[tuple[str, str | None, Document]]:
        last_id: str | None = None
        failures = 0
        while True:
            try:
                headers = {} if last_id is None else {"Last-Event-ID": last_id}
                asked = _given(parameters)
                with self._http.stream("GET", path, params=asked, headers=headers, timeout=_STREAM_TIMEOUT) as answer:
                    if answer.status_code >= 300:
                        answer.read()
                        raise_for_problem(answer)
                    failures = 0
                    for name, event_id, data in _frames(answer.iter_lines()):
                        last_id = event_id or last_id
                        if ends_with is not None and name == ends_with:
                            return
                        yield name, event_id, data
            except httpx.HTTPError as error:
                failures += 1
                if failures > 8:
                    raise UnreachableError(f"the stream {path} broke: {error}") from error
                time.sleep(_pause_s(failures, None))


def _frames(lines: Iterator[str]) -> Iterator[tuple[str, str | None, Document]]:
    name, event_id, data = "message", None, []
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield name, event_id, json.loads("\n".join(data))
            name, event_id, data = "message", None, []


def _pause_s(tries: int, retry_after: object) -> float:
    if isinstance(retry_after, int):
        return float(min(retry_after, RETRY_CAP_S))
    return _CHANCE.uniform(0, min(RETRY_CAP_S, RETRY_BASE_S * 2**tries))


def _given(parameters: Document) -> Document:
    return {name: value for name, value in parameters.items() if value is not None}
