"""Receives the secrets of attempts for their supervisors: asked once, before the start, and laid in memory alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from muster.client.host import HostClient
from muster.client.transport import Problem, UnreachableError
from muster.domain.errors import SecretKeyError
from muster.domain.ids import AttemptId
from muster.domain.lifecycle.host import HostRecord
from muster.wire.host import PROTOCOL_VERSION, SecretsRequest
from muster.wire.sealed_secrets import NotSealedForThisError, QuestionKey, context_of
from workers.host.attempt_folder import AttemptFolder
from workers.host.supervisor.user import sealed_secrets

FIRST_PAUSE_MS: Final = 500
LONGEST_PAUSE_MS: Final = 8_000
GIVES_UP_AFTER_MS: Final = 20_000
"""Time for which a server that cannot use its keys is asked again: then the fault is the attempt's end."""
_FAULT_OF_THE_SERVER: Final = 500
_MAY_PASS: Final = frozenset({404, 408, 409, 425, 429})
"""Also an API of the release before, which does not know the question, and a conflict, which a stop follows."""
_log = structlog.get_logger(__name__)


class _Tries:
    """Tries of one attempt. ``failing_since_ms``: when the server first answered that its keys cannot be used."""

    def __init__(self) -> None:
        self.next_ms = 0
        self.pause_ms = FIRST_PAUSE_MS
        self.failing_since_ms: int | None = None

    def wait(self, now_ms: int) -> None:
        self.next_ms = now_ms + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, LONGEST_PAUSE_MS)


class SecretDelivery:
    """Secrets of the attempts of one host. ``clock_ms``: of the leases."""

    def __init__(self, client: HostClient, node_id: str, boot_id: str, clock_ms: Callable[[], int]) -> None:
        self._client = client
        self._node_id = node_id
        self._boot_id = boot_id
        self._clock_ms = clock_ms
        self._tries: dict[AttemptId, _Tries] = {}

    def are_here(self, record: HostRecord, folder: AttemptFolder) -> bool:
        """Return whether the supervisor may start: its secrets are laid, or the reason why they cannot be.

        False: the server was not reached, or does not grant them now. The caller asks again at its next turn.
        """
        if not _sealed_names(folder) or sealed_secrets.is_whole(folder.path):
            self._tries.pop(record.attempt_id, None)
            return True
        tries = self._tries.setdefault(record.attempt_id, _Tries())
        now_ms = self._clock_ms()
        if now_ms < tries.next_ms:
            return False
        try:
            self._receive(record, folder.path)
        except UnreachableError as fault:
            return self._again(record, tries, str(fault))
        except (Problem, NotSealedForThisError) as fault:
            return self._refused(record, folder.path, tries, fault)
        except OSError as fault:
            # The supervisor states the reason itself, by the memory that it does not find.
            _log.warning("secrets_not_laid", attempt_id=record.attempt_id, fault=str(fault))
        self._tries.pop(record.attempt_id, None)
        return True

    def _receive(self, record: HostRecord, folder: Path) -> None:
        key = QuestionKey()
        request = SecretsRequest(
            protocol=PROTOCOL_VERSION, boot_id=self._boot_id, fence=record.fence, public_key=key.public
        )
        answer = self._client.secrets(record.attempt_id, request)
        context = context_of(self._node_id, record.attempt_id, record.fence)
        sealed_secrets.lay(folder, key.opened(answer.public_key, answer.sealed, context))

    def _again(self, record: HostRecord, tries: _Tries, why: str) -> bool:
        _log.warning("secrets_not_received", attempt_id=record.attempt_id, why=why)
        tries.wait(self._clock_ms())
        return False

    def _refused(self, record: HostRecord, folder: Path, tries: _Tries, fault: Exception) -> bool:
        """Ask again later, or write the reason down."""
        if isinstance(fault, Problem) and self._may_pass(fault, tries):
            return self._again(record, tries, str(fault))
        sealed_secrets.lay(folder, {}, str(fault) or "the control plane refused them")
        return True

    def _may_pass(self, fault: Problem, tries: _Tries) -> bool:
        """Return whether another try may help. The lease and the time until the part is ready bound the tries."""
        if fault.code == SecretKeyError.code:
            now_ms = self._clock_ms()
            if tries.failing_since_ms is None:
                tries.failing_since_ms = now_ms
            return now_ms < tries.failing_since_ms + GIVES_UP_AFTER_MS
        return fault.status >= _FAULT_OF_THE_SERVER or fault.status in _MAY_PASS


def _sealed_names(folder: AttemptFolder) -> bool:
    return bool(((folder.read("order.json") or {}).get("secrets") or {}).get("sealed"))
