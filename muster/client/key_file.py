"""A credential in a file that another process may renew: an agent's token lasts an hour."""

import contextlib
from pathlib import Path


class KeyFile:
    """The key that a file held when it was last read. A 401 has it read again, and a new key is tried once.

    Raises:
        OSError, UnicodeDecodeError: it cannot be read at the start. Later, the key that was read stays in use.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.text = self._read()

    def read_again(self) -> str:
        """Return the key that the file holds now."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            self.text = self._read()
        return self.text

    def _read(self) -> str:
        return self._path.read_text(encoding="ascii").strip()
