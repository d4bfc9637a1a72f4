"""A registry of npm on this machine, with small packages of the names that the console's lock holds."""

import base64
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

Package = dict[str, bytes]


def tarball(name: str, version: str, files: Package) -> bytes:
    content = io.BytesIO()
    table = json.dumps({"name": name, "version": version, "license": "0BSD"}).encode()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for path, body in {"package.json": table, **files}.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return content.getvalue()


def integrity(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


class NpmRegistry:
    """Answers for each package with what there is of it, and with its contents."""

    def __init__(self, packages: dict[str, Package]) -> None:
        self.version = "1.2.3"
        self.tarballs = {name: tarball(name, self.version, files) for name, files in packages.items()}
        self.url = ""

    def lock(self) -> dict[str, Any]:
        """As ``npm install`` writes it with `omit-lockfile-registry-resolved`."""
        wanted = dict.fromkeys(self.tarballs, self.version)
        packages = {
            f"node_modules/{name}": {"version": self.version, "integrity": integrity(content)}
            for name, content in self.tarballs.items()
        }
        root = {"name": "assets", "dependencies": wanted}
        return {"name": "assets", "lockfileVersion": 3, "requires": True, "packages": {"": root, **packages}}

    def about(self, name: str) -> dict[str, Any]:
        dist = {"tarball": f"{self.url}/{name}.tgz", "integrity": integrity(self.tarballs[name])}
        version = {"name": name, "version": self.version, "dist": dist}
        return {"name": name, "dist-tags": {"latest": self.version}, "versions": {self.version: version}}


@contextmanager
def serving(registry: NpmRegistry) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = unquote(self.path).lstrip("/")
            if name.endswith(".tgz"):
                content = registry.tarballs[name.removesuffix(".tgz")]
            else:
                content = json.dumps(registry.about(name)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """What npm asks is not for the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
