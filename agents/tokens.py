"""The agent's present credential: requested with a signature, renewed at half its life."""

import random
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from muster.client.transport import Problem, UnreachableError
from muster.durable import write_durably
from muster.wire.enrolment import ENROLMENT_PROTOCOL, TokenAnswer, TokenRequest, challenge_bytes

RETRY_MS: Final = 5_000
REFUSED_RETRY_MS: Final = 60_000
_log = structlog.get_logger(__name__)


class NoTokenError(Exception):
    """There is no credential at present. ``is_for_long``: a person must act first."""

    def __init__(self, words: str, *, is_for_long: bool = False) -> None:
        self.is_for_long = is_for_long
        super().__init__(words)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Identity of a node. ``key`` never leaves the host."""

    node_id: str
    key: Ed25519PrivateKey


class TokenKeeper:
    """The credential. ``ask`` sends a request to the server. ``token_file``: the token for the host's other programs.

    ``instance`` is in memory alone: a copied disk cannot hold it, so the server detects two agents with one key.
    """

    def __init__(
        self,
        identity: NodeIdentity,
        ask: Callable[[str, TokenRequest], TokenAnswer],
        boot_id: str,
        *,
        monotonic_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        rng: random.Random,
        token_file: Path | None = None,
    ) -> None:
        self._identity = identity
        self._ask = ask
        self._boot_id = boot_id
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms
        self._rng = rng
        self._token_file = token_file
        self._instance = secrets.token_urlsafe(16)
        self._lock = threading.Lock()
        self._token: str | None = None
        self._renew_ms = 0
        self._expires_ms = 0
        self._next_try_ms = 0
        self._signed_ms = 0
        self._clock_offset_ms = 0
        self._fault: NoTokenError | None = None

    def token(self) -> str:
        """Return the token.

        Raises NoTokenError: the server gives none, or does not answer, and the last one has expired.
        """
        with self._lock:
            now_ms = self._monotonic_ms()
            if now_ms >= self._renew_ms and now_ms >= self._next_try_ms:
                self._renew(now_ms)
            if self._token is None or self._monotonic_ms() >= self._expires_ms:
                raise self._fault or NoTokenError("no token yet")
            return self._token

    def invalidate(self, token: str) -> None:
        """Drop a token that the server does not accept: another is requested before the next use."""
        with self._lock:
            if token == self._token:
                self._token = None
                self._renew_ms = 0

    def _renew(self, now_ms: int) -> None:
        try:
            answer = self._query_twice()
        except UnreachableError as fault:
            self._note_fault(NoTokenError(str(fault)), now_ms, RETRY_MS)
            return
        except Problem as problem:
            is_final = 400 <= problem.status < 500 and problem.status not in {408, 425, 429}
            words = NoTokenError(f"no token: {problem.detail}", is_for_long=is_final)
            self._note_fault(words, now_ms, REFUSED_RETRY_MS if is_final else RETRY_MS)
            return
        self._fault = None
        self._token = answer.token
        self._expires_ms = now_ms + round(answer.expires_in_s * 1000)
        self._renew_ms = now_ms + round(answer.renew_after_s * 1000 * self._rng.uniform(0.9, 1.0))
        self._write(answer.token)

    def _note_fault(self, fault: NoTokenError, now_ms: int, retry_ms: int) -> None:
        if self._fault is None or str(self._fault) != str(fault):
            _log.error("no_token", node_id=self._identity.node_id, fault=str(fault))
        self._fault = fault
        self._next_try_ms = now_ms + round(retry_ms * self._rng.uniform(0.5, 1.0))

    def _query_twice(self) -> TokenAnswer:
        """Request a token, and again where the host's clock is wrong: the server states its own time then."""
        try:
            return self._ask(self._identity.node_id, self._signed())
        except Problem as problem:
            said: dict[str, Any] = problem.document or {}
            if said.get("reason") != "stale_challenge":
                raise
            server_ms, after_ms = said.get("server_time_ms"), said.get("after_ms")
            if not isinstance(server_ms, int) or not isinstance(after_ms, int):
                raise
            self._clock_offset_ms = server_ms - self._wall_ms()
            self._signed_ms = after_ms
            return self._ask(self._identity.node_id, self._signed())

    def _signed(self) -> TokenRequest:
        self._signed_ms = max(self._wall_ms() + self._clock_offset_ms, self._signed_ms + 1)
        nonce = secrets.token_urlsafe(16)
        signed = challenge_bytes(
            self._identity.node_id,
            boot_id=self._boot_id,
            instance=self._instance,
            nonce=nonce,
            at_ms=self._signed_ms,
        )
        return TokenRequest(
            protocol=ENROLMENT_PROTOCOL,
            boot_id=self._boot_id,
            instance=self._instance,
            nonce=nonce,
            at_ms=self._signed_ms,
            signature=self._identity.key.sign(signed),
        )

    def _write(self, token: str) -> None:
        if self._token_file is None:
            return
        try:
            write_durably(self._token_file, token.encode() + b"\n")
        except OSError as error:
            _log.warning("token_file_not_written", path=str(self._token_file), fault=str(error))
