"""Pin the images of others by their digests, as a registry has them now.

    python deploy/pin_images.py --registry https://REGISTRY docker-compose.yml deploy/*.Dockerfile
    python deploy/pin_images.py --registry https://REGISTRY --check docker-compose.yml deploy/*.Dockerfile

The first writes ``name:tag@sha256:…`` in place of each ``name:tag``, and renews digests of tags that have moved. The
second changes nothing, and its exit code is 1 if a file would change. A digest is taken only if the manifest that the
registry sends has it. Our own images (``muster-…``), which are built here, stay as they are.
"""

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

_IMAGE: Final = re.compile(
    r"^(?P<head>\s*(?:image:|FROM)\s+)(?P<name>[a-z0-9][a-z0-9./-]*):(?P<tag>[\w][\w.-]*)(?P<digest>@sha256:[0-9a-f]{64})?",
    re.MULTILINE,
)
_OURS: Final = "muster-"
_ACCEPTED: Final = (
    "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
)
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_CLEAR_TEXT_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_MOST_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 30


class PinError(Exception):
    """A digest is not available; the message says of which image, and why."""


class Registry:
    """A registry of the OCI distribution API. ``namespace``: of names without one."""

    def __init__(self, url: str, namespace: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _CLEAR_TEXT_HOSTS):
            raise PinError(f"--registry {url}: give an https:// address; http:// is for this machine alone")
        self._url = url.rstrip("/")
        self._namespace = namespace
        self._known: dict[tuple[str, str], str] = {}

    def digest(self, name: str, tag: str) -> str:
        """Return the digest of a tag. Raises PinError."""
        if (name, tag) not in self._known:
            self._known[name, tag] = self._fetched(name, tag)
        return self._known[name, tag]

    def _fetched(self, name: str, tag: str) -> str:
        path = name if "/" in name or not self._namespace else f"{self._namespace}/{name}"
        url = f"{self._url}/v2/{path}/manifests/{tag}"
        request = urllib.request.Request(url, headers={"Accept": _ACCEPTED})  # noqa: S310  # http or https, as checked
        try:
            try:
                manifest, stated = _answer(request)
            except urllib.error.HTTPError as refused:
                if refused.code != 401:  # the one status that offers a token
                    raise
                request.add_header("Authorization", f"Bearer {_token(refused.headers['WWW-Authenticate'] or '')}")
                manifest, stated = _answer(request)
        except (OSError, ValueError) as fault:
            raise PinError(f"{name}:{tag}: {fault}") from fault
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        if stated not in {None, digest}:
            raise PinError(f"{name}:{tag}: the registry states {stated}, and sends what has {digest}")
        return digest


def _answer(request: urllib.request.Request) -> tuple[bytes, str | None]:
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # http or https, as checked
        content: bytes = answer.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ValueError(f"its manifest is larger than {_MOST_BYTES} bytes")
        return content, answer.headers.get("Docker-Content-Digest")


def _token(challenge: str) -> str:
    """Return the token with which a public image is read. Raises OSError and ValueError."""
    offered = dict(_CHALLENGE.findall(challenge))
    if not challenge.startswith("Bearer ") or not offered.get("realm", "").startswith(
        ("https://", "http://127.0.0.1:")
    ):
        raise ValueError("the registry asks for credentials")
    query = urllib.parse.urlencode({name: value for name, value in offered.items() if name != "realm"})
    content, _ = _answer(urllib.request.Request(f"{offered['realm']}?{query}"))  # noqa: S310  # as checked above
    document = json.loads(content)
    token = document.get("token") or document.get("access_token") if isinstance(document, dict) else None
    if not token:
        raise ValueError("the registry sent no token")
    return str(token)


def pinned(text: str, digest_of: Callable[[str, str], str]) -> str:
    """Return the text of a Compose file or Dockerfile with each image of others pinned."""

    def pin(found: "re.Match[str]") -> str:
        if found["name"].startswith(_OURS):
            return found[0]
        return f"{found['head']}{found['name']}:{found['tag']}@{digest_of(found['name'], found['tag'])}"

    return _IMAGE.sub(pin, text)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Pin the images of others by their digests.")
    parser.add_argument("--registry", required=True, metavar="URL", help="Of the images, or of a mirror of them.")
    parser.add_argument("--namespace", default="library", help="Of names without one. Default: library.")
    parser.add_argument("--check", action="store_true", help="Change nothing; exit code 1 if a file would change.")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    given = parser.parse_args(words)
    try:
        registry = Registry(given.registry, given.namespace)
        texts = {path: path.read_text(encoding="utf-8") for path in given.files}
        changed = {path: new for path, text in texts.items() if (new := pinned(text, registry.digest)) != text}
    except (PinError, OSError) as fault:
        sys.stderr.write(f"error: {fault}\n")
        return 2
    for path, text in changed.items():
        if not given.check:
            path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}: {'the registry has other digests' if given.check else 'pinned'}\n")
    return 1 if given.check and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
