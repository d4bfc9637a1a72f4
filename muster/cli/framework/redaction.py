"""Redaction of texts and documents that leave a machine: no key, token or password from any file or answer.

It works in two ways at once: by shape (our tokens, passwords in addresses, members named like secrets), and by value:
the values in this machine's own secret files and settings are struck out wherever they appear, also encoded.
"""

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

STRUCK: Final = "[struck out]"
LEAST_SECRET: Final = 8
"""Length below which a value is no secret, since it would strike out plain words."""
LEAST_WORD: Final = 16
"""Length below which a word within a line is no secret by itself."""
_NO_SECRETS: Final = frozenset({"postgres", "broker", "spool", "logs", "checkpoints", "attempts", "store"})
"""Folders of a state folder that are large, and hold no secret file."""
_SECRET_SUFFIXES: Final = frozenset({".key", ".token", ".url", ".pem", ".password"})
_NAMED: Final = re.compile(r"(?i)(secret|token|password|passphrase|authorization|cookie|api_?key|private_?key|dsn)")
_NOT_SECRET: Final = re.compile(r"(?i)(_file|_path|_id|_prefix|tokens?_per_\w+)$")
_TOKEN: Final = re.compile(r"\b(?:mst|mjt)_[0-9A-Za-z_-]{6,}")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)\s+[0-9A-Za-z._~+/=-]{8,}")
_URL_PASSWORD: Final = re.compile(r"(?<=://)([^:/@\s\"']*):([^@\s\"']+)@")
_ASSIGNED: Final = re.compile(
    r"(?i)([\"']?[\w-]*(?:secret|token|password|passphrase|api_?key|authorization)[\w-]*[\"']?\s*[:=]\s*)"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;}\]]+)"
)
_SIGNATURE: Final = re.compile(r"(?i)(X-Amz-Signature=)[0-9a-f]+")
_PEM: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


class Redaction:
    """Replacement of secrets in texts and documents that must not leave this machine."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets for form in _forms(secret) if len(form) >= LEAST_SECRET}
        longest_first = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, words: str) -> str:
        if self._known is not None:
            words = self._known.sub(STRUCK, words)
        words = _PEM.sub(STRUCK, words)
        words = _TOKEN.sub(STRUCK, words)
        words = _SIGNATURE.sub(rf"\1{STRUCK}", words)
        words = _BEARER.sub(rf"\1 {STRUCK}", words)
        words = _URL_PASSWORD.sub(rf"\1:{STRUCK}@", words)
        return _ASSIGNED.sub(self._struck_assignment, words)

    def document(self, value: Any) -> Any:
        """Return the same document, in which members named like secrets have no value."""
        if isinstance(value, Mapping):
            return {
                self.text(str(name)): STRUCK if _is_secret(str(name), each) else self.document(each)
                for name, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.document(each) for each in value]
        return self.text(value) if isinstance(value, str) else value

    @staticmethod
    def _struck_assignment(found: re.Match[str]) -> str:
        name = found[1].strip(" :=\"'")
        return found[0] if _NOT_SECRET.search(name) else found[1] + STRUCK


def _is_secret(name: str, value: object) -> bool:
    return value is not None and bool(_NAMED.search(name)) and not _NOT_SECRET.search(name)


def _forms(secret: str) -> Iterator[str]:
    """Yield a secret as it is, and as it would be in an address, in base64, and as hexadecimal digits."""
    yield secret
    yield quote(secret, safe="")
    yield unquote(secret)
    yield base64.b64encode(secret.encode()).decode().rstrip("=")
    yield secret.encode().hex()


def secrets_in(folder: Path) -> Iterator[str]:
    """Yield the values of secret files under a state folder: keys, tokens, addresses with passwords, private keys."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders) - _NO_SECRETS)
        for name in sorted(files):
            path = Path(place) / name
            if path.suffix in _SECRET_SUFFIXES or path.parent.name == "keys" or _NAMED.search(name) or "_key" in name:
                yield from secrets_of_file(path)


def secrets_of_file(path: Path) -> Iterator[str]:
    """Yield each line of a file and its words, or the password of an address; none if it cannot be read or is no text.

    A key of the content store has its name and its secret in one line.
    """
    try:
        if not path.is_file() or path.stat().st_size > 64 * 1024:
            return
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        word = line.strip()
        if "://" in word:
            yield from secrets_of_url(word)
        elif word and not word.startswith("-----"):
            yield word
            yield from (part for part in word.split() if LEAST_WORD <= len(part) < len(word))


def secrets_of_url(text: str) -> Iterator[str]:
    try:
        password = urlsplit(text).password
    except ValueError:
        return
    if password:
        yield password
        yield unquote(password)
