"""The git repository of a job's program: a commit that a host fetches, and that becomes an ordinary bundle."""

import hashlib
import json
import posixpath
import re
from collections.abc import Collection
from typing import Annotated, Final
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import AfterValidator, Field, model_validator

from muster.domain.loopback import is_loopback
from muster.domain.strict import Line, Name, StrictModel

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SCHEMES: Final = ("https", "ssh", "http", "file")
_DEFAULT_PORTS: Final = {"https": 443, "ssh": 22}
_SCP: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+(?:@[A-Za-z0-9._-]+)?):(?!//)(?P<path>[^:].*)")
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+")
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_INSTEAD: Final = "name a secret by `secret` (`--git-secret`), which `muster secret set` stores"
MAX_URL: Final = 2048


def git_commit(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no whole commit id."""
    if not _COMMIT.fullmatch(text):
        raise ValueError(
            "must be a whole commit id of 40 hexadecimal digits in lower case, as `git rev-parse HEAD` prints: a "
            "branch or tag may be another commit tomorrow"
        )
    return text


def git_url(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no URL of a repository that a host may be asked to fetch."""
    if text.startswith("-") or "::" in text.partition("://")[0]:
        raise ValueError("must begin with https:// or ssh://, and is given to git as nothing else")
    if "://" not in text:
        if (scp := _SCP.fullmatch(text)) is not None:
            raise ValueError(f"must be a URL: write ssh://{scp['host']}/{scp['path'].lstrip('/')}")
        raise ValueError("must be a URL, https:// or ssh://; a folder of this machine uses `--bundle`")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as fault:
        raise ValueError(f"is no URL: {fault}") from None
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"must begin with https:// or ssh://, not {parts.scheme[:20]}://")
    _require_plain(text, parts, port)
    return text


def _require_plain(text: str, parts: SplitResult, port: int | None) -> None:
    """Raise ValueError for a part of the URL that it may not have."""
    if parts.password is not None or (parts.username is not None and parts.scheme != "ssh"):
        raise ValueError(f"must have no user or password in it, which each reader of the job would see: {_INSTEAD}")
    if parts.username is not None and not _USER.fullmatch(parts.username):
        raise ValueError("must have a user of letters, digits, dot, dash and underscore")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise ValueError("must have no `?` and no `#`")
    if any(character.isspace() or character in "\\'\"`$" for character in unquote(text)):
        raise ValueError("must have no space, quote, backslash or `$`")
    if parts.scheme == "file":
        path = unquote(parts.path)  # as git reads it
        if parts.netloc or posixpath.normpath(path) != path.rstrip("/"):
            raise ValueError("must be file:///PATH without '..', '.' or doubled slashes")
        return
    if not parts.hostname or not _HOST.fullmatch(parts.hostname) or port == 0:
        raise ValueError("must name a host")
    if not parts.path.strip("/") or ".." in unquote(parts.path).split("/"):
        raise ValueError("must name a repository on its host, without '..'")


GitUrl = Annotated[Line, AfterValidator(git_url), Field(max_length=MAX_URL)]
GitCommit = Annotated[str, AfterValidator(git_commit), Field(max_length=40)]


class GitSource(StrictModel):
    """A commit of a git repository, whose files become the job's bundle."""

    url: GitUrl
    commit: GitCommit
    secret: Name | None = None

    @model_validator(mode="after")
    def _keeps_its_secret(self) -> "GitSource":
        parts = urlsplit(self.url)
        if self.secret is None or parts.scheme in {"https", "ssh"}:
            return self
        if parts.scheme == "file" or not is_loopback(parts.hostname or ""):
            raise ValueError(f"`secret` is sent by https:// or ssh:// alone, and this is {parts.scheme}://")
        return self

    @property
    def key(self) -> str:
        """Return the key by which one tenant's hosts make its bundle once."""
        return hashlib.sha256(json.dumps(["git", 1, self.url, self.commit, self.secret]).encode()).hexdigest()


def is_allowed(url: str, hosts: Collection[str]) -> bool:
    """Return whether the operator names the repository's host, in the way that the URL goes there.

    ``hosts``: ``HOST`` or ``HOST:PORT``, for https and ssh. What begins with ``http://`` or ``file:///`` allows just
    that server, or that folder and what is in it.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        roots = [entry.removeprefix("file://").rstrip("/") for entry in hosts if entry.startswith("file://")]
        return any(parts.path.startswith(f"{root}/") or parts.path == root for root in roots)
    host = (parts.hostname or "").lower()
    name = f"[{host}]" if ":" in host else host
    port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 80)
    if parts.scheme == "http":
        return f"http://{name}:{port}" in hosts or (port == 80 and f"http://{name}" in hosts)
    return f"{name}:{port}" in hosts or (port == _DEFAULT_PORTS[parts.scheme] and name in hosts)


def git_host(text: str) -> str:
    """Return ``text``. Raise ValueError where it is no entry of ``content.git_hosts``."""
    scheme, is_url, rest = text.partition("://")
    if is_url and scheme == "file":
        if not rest.startswith("/") or posixpath.normpath(rest) != rest:
            raise ValueError("must be file:///FOLDER without '..', '.' or a slash at its end")
        return text
    if is_url and scheme != "http":
        raise ValueError("must be HOST or HOST:PORT, for https and ssh; or http://HOST:PORT, or file:///FOLDER")
    if text != text.lower() or not _is_server(rest if is_url else text):
        raise ValueError("must be HOST or HOST:PORT in lower case, such as github.com or git.example.org:8443")
    return text


def _is_server(text: str) -> bool:
    """Return whether the text is HOST or HOST:PORT, and nothing else."""
    try:
        parts = urlsplit(f"https://{text}")
        is_plain = parts.netloc == text and parts.username is None and parts.port != 0
    except ValueError:
        return False
    return is_plain and _HOST.fullmatch(parts.hostname or "") is not None
