"""GPUs and the circuit breaker by REST: what is known, and what an operator does."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

Document = dict[str, Any]


class GpuCalls(ABC):
    """A part of ``RestClient``."""

    def gpu(self, uuid: str) -> Document:
        """One GPU in full."""
        return self._read(_path(uuid))

    def latest(self, uuid: str) -> Document:
        """Its newest readings."""
        return self._read(f"{_path(uuid)}/latest")

    def history(self, uuid: str, **wanted: Any) -> Document:
        """Its readings over time, and what its agent counted as lost. Wanted: ``metric``, ``until``, ``step``."""
        return self._read(f"{_path(uuid)}/history", **wanted)

    def evidence(self, uuid: str) -> Iterator[Document]:
        """All that was ever found about it, the newest first."""
        return self._pages(f"{_path(uuid)}/evidence", {})

    def dismiss_evidence(self, uuid: str, evidence_id: str, reason: str, *, dry_run: bool = False) -> Document:
        path = f"{_path(uuid)}/evidence/{quote(evidence_id, safe='')}/dismiss"
        return self._change("POST", path, {"reason": reason}, dry_run=dry_run)

    def repair_gpu(
        self,
        uuid: str,
        step: str,
        reason: str,
        *,
        action: str = "other",
        fault_group: str | None = None,
        dry_run: bool = False,
    ) -> Document:
        """``step``: start, finish or fail. ``action`` and ``fault_group`` (what is done, what for) are the start's."""
        if step == "start":
            body = {"reason": reason, "action": action, "fault_group": fault_group}
            return self._change("POST", f"{_path(uuid)}/repair", body, dry_run=dry_run)
        return self._change("POST", f"{_path(uuid)}/repair/{step}", {"reason": reason}, dry_run=dry_run)

    def retire_gpu(self, uuid: str, reason: str, *, dry_run: bool = False) -> Document:
        return self._change("POST", f"{_path(uuid)}/retire", {"reason": reason}, dry_run=dry_run)

    def reinstate_gpu(self, uuid: str, reason: str, *, dry_run: bool = False) -> Document:
        return self._change("POST", f"{_path(uuid)}/reinstate", {"reason": reason}, dry_run=dry_run)

    def breakers(self) -> list[Document]:
        return list(self._read("/v1/breakers")["items"])

    def close_breaker(self, name: str, scope: str, reason: str, *, dry_run: bool = False) -> Document:
        path = f"/v1/breakers/{quote(name, safe='')}/close"
        return self._change("POST", path, {"scope": scope, "reason": reason}, dry_run=dry_run)

    @abstractmethod
    def _read(self, path: str, **parameters: Any) -> Document: ...

    @abstractmethod
    def _pages(self, path: str, filters: Document) -> Iterator[Document]: ...

    @abstractmethod
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
    ) -> Document: ...


def _path(uuid: str) -> str:
    return f"/v1/gpus/{quote(uuid, safe='')}"
