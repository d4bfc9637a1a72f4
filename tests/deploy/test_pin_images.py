"""Images are pinned by what a registry sends: a fake one on this machine, which gives tokens as public ones do."""

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.deploy.compose_file import COMPOSE_FILE, ROOT

SCRIPT: Final = ROOT / "deploy" / "pin_images.py"
FILES: Final = (COMPOSE_FILE, *sorted((ROOT / "deploy").glob("*.Dockerfile")))


class Registry:
    """``manifests``: content by path; ``states``: the digest that it states instead of the right one."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.states: str | None = None
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                registry._serve(self)

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        path = urlsplit(handler.path)
        if path.path == "/token":
            scope = parse_qs(path.query)["scope"][0]
            return self._send(handler, 200, json.dumps({"token": f"for {scope}"}).encode(), {})
        found = re.fullmatch(r"/v2/(.+)/manifests/(.+)", path.path)
        assert found is not None
        scope = f"repository:{found[1]}:pull"
        if handler.headers["Authorization"] != f"Bearer for {scope}":
            challenge = f'Bearer realm="{self.url}/token",service="here",scope="{scope}"'
            return self._send(handler, 401, b"", {"WWW-Authenticate": challenge})
        content = self.manifests.get(f"{found[1]}:{found[2]}")
        if content is None:
            return self._send(handler, 404, b"", {})
        return self._send(handler, 200, content, {"Docker-Content-Digest": self.states or digest(content)})

    def _send(self, handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
        handler.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry()
    thread = threading.Thread(target=registry.server.serve_forever)
    thread.start()
    yield registry
    registry.server.shutdown()
    registry.server.server_close()
    thread.join()


def pin(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )


def test_every_image_of_others_in_our_files_is_pinned_and_our_own_are_not(registry: Registry, tmp_path: Path) -> None:
    images = {
        name
        for path in FILES
        for name in re.findall(r"^\s*(?:image:|FROM)\s+([a-z0-9./-]+:[\w.-]+)", path.read_text(), re.MULTILINE)
        if not name.startswith("muster-")
    }
    assert {name.split(":")[0] for name in images} == {"postgres", "python", "redis"}
    registry.manifests = {f"library/{name}": name.encode() for name in images}
    copies = [tmp_path / path.name for path in FILES]
    for path, copy in zip(FILES, copies, strict=True):
        copy.write_text(path.read_text())
    answer = pin("--registry", registry.url, *copies)
    assert answer.returncode == 0, answer.stderr
    for path, copy in zip(FILES, copies, strict=True):
        text = path.read_text()
        for name in images:
            text = re.sub(rf"\b{re.escape(name)}(?![\w.-])(@sha256:\w+)?", f"{name}@{digest(name.encode())}", text)
        assert copy.read_text() == text
    assert pin("--registry", registry.url, "--check", *copies).returncode == 0
    registry.manifests[f"library/{min(images)}"] = b"built anew"
    moved = pin("--registry", registry.url, "--check", *copies)
    assert moved.returncode == 1
    assert "the registry has other digests" in moved.stdout
    assert pin("--registry", registry.url, *copies).returncode == 0
    assert any(digest(b"built anew") in copy.read_text() for copy in copies)


@pytest.mark.parametrize(
    ("image", "states", "words"),
    [
        ("redis:9", None, "redis:9: HTTP Error 404"),
        ("redis:7", digest(b"another"), "the registry states sha256:"),
    ],
)
def test_what_the_registry_does_not_have_is_not_pinned(
    registry: Registry, tmp_path: Path, image: str, states: str | None, words: str
) -> None:
    registry.manifests = {"library/redis:7": b"seven"}
    registry.states = states
    path = tmp_path / "compose.yml"
    path.write_text(f"image: {image}\n")
    refused = pin("--registry", registry.url, path)
    assert refused.returncode == 2
    assert words in refused.stderr
    assert path.read_text() == f"image: {image}\n"


def test_a_registry_in_clear_text_is_refused(tmp_path: Path) -> None:
    refused = pin("--registry", "http://registry.example", tmp_path / "none")
    assert refused.returncode == 2
    assert "give an https:// address" in refused.stderr
