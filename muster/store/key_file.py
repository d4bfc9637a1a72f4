"""The file of the store's access keys: one ``NAME SECRET`` a line. The first signs, each of them is accepted.

Blank lines and lines that begin with ``#`` count for nothing.

So a key is replaced without an interruption: add the new one below, later move it to the top, later remove the old one.
Processes read the file again when it changes.
"""

import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from muster.durable import create_durably
from muster.plain_files import state_of
from muster.settings import SettingsError, read_private_file
from muster.store.signing import AccessKey

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

MAX_KEYS: Final = 8
CHECKED_S: Final = 1.0
"""Period in which the file is checked for a change."""


class KeyFile:
    """The keys of one file, as they are now. A change that cannot be read leaves the keys as they were."""

    def __init__(self, path: Path) -> None:
        """Raise SettingsError: it has no keys, or others can read it."""
        self._path = path
        self._state = state_of(path)
        self._keys = read_keys(path)
        self._checked_s = time.monotonic()

    def current(self) -> tuple[AccessKey, ...]:
        if time.monotonic() - self._checked_s >= CHECKED_S:
            self._check()
        return self._keys

    def named(self, name: str) -> AccessKey | None:
        """Return the key of that name. An unknown one may be new: another process signs by the file as it is now."""
        found = _named(self.current(), name)
        if found is None:
            self._check()
            found = _named(self._keys, name)
        return found

    def _check(self) -> None:
        self._checked_s = time.monotonic()
        state = state_of(self._path)
        if state != self._state:
            self._state = state
            self._read()

    def _read(self) -> None:
        try:
            self._keys = read_keys(self._path)
        except SettingsError as error:
            _log().warning("store_keys_unreadable", fault=str(error))
            return
        _log().info("store_keys_read", names=[key.name for key in self._keys])


def read_keys(path: Path) -> tuple[AccessKey, ...]:
    """Return the keys of a file. Raises SettingsError: it has none, or is not as it must be."""
    texts = (line.strip() for line in read_private_file(path).splitlines())
    lines = [text.split() for text in texts if text and not text.startswith("#")]
    if not lines or len(lines) > MAX_KEYS or any(len(words) != 2 or not "".join(words).isascii() for words in lines):
        raise SettingsError([f"{path}: must have 1 to {MAX_KEYS} lines, each an access key, a space and its secret"])
    if len({name for name, _ in lines}) < len(lines):
        raise SettingsError([f"{path}: an access key stands twice"])
    return tuple(AccessKey(name, secret) for name, secret in lines)


def make_key_file(path: Path) -> None:
    """Write a fresh key, mode 0600, unless there is a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    create_durably(path, f"muster-{secrets.token_hex(6)} {secrets.token_hex(32)}\n".encode("ascii"))


def _named(keys: tuple[AccessKey, ...], name: str) -> AccessKey | None:
    return next((key for key in keys if key.name == name), None)


def _log() -> "BoundLogger":
    import structlog  # noqa: PLC0415  # the small client has this module for the doctor, and no logs

    log: BoundLogger = structlog.get_logger(__name__)
    return log
