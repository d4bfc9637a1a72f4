"""A credential in a file that another process may renew: an agent's token lasts an hour."""

from collections.abc import Generator
from pathlib import Path

import httpx


class KeyFile(httpx.Auth):
    """The key that a file held when it was last read. A 401 has it read again, and a new key is tried once.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read at the start. Later, the key that was read stays in use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key = self._read()

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        used = self._key
        request.headers["Authorization"] = f"Bearer {used}"
        answer = yield request
        if answer.status_code != httpx.codes.UNAUTHORIZED:
            return
        try:
            self._key = self._read()
        except (OSError, UnicodeDecodeError):
            return
        if self._key != used:
            request.headers["Authorization"] = f"Bearer {self._key}"
            yield request

    def _read(self) -> str:
        return self._path.read_text(encoding="ascii").strip()
